// Numbers of heads, and of blocks of their rows: factors and means of fp8_e4m3, slopes, sinks. Not given: nothing.
#pragma once
#include <cstdint>

#include "onepass/problem.hpp"
#include "onepass/tensor.hpp"

namespace onepass::check {

// 1/64 to 1/2: the numbers then fill e4m3's range, and a factor taken from another place shows.
void draw_descale(const ConstTensor& descale, Role role, std::uint64_t seed);
// N(0, 1)
void draw_mean(const ConstTensor& mean, std::uint64_t seed);
// 2^-1 .. 2^-8, as the ALiBi paper has them for 8 heads; each batch entry begins elsewhere.
void draw_slopes(const ConstTensor& slopes, std::int64_t heads);
// N(4, 4)
void draw_sinks(const ConstTensor& sinks, std::uint64_t seed);

}  // namespace onepass::check
