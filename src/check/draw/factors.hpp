// Tensors with an element per head or per block of rows: scales and means of fp8_e4m3, slopes, sinks. A tensor that is
// not given is left alone.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass::check {

// 1/64 to 1/2: elements then fill e4m3's range, and a scale that was taken from another place shows.
void draw_descale(const ConstTensor& descale, Role role, std::uint64_t seed);
// N(0, 1)
void draw_mean(const ConstTensor& mean, std::uint64_t seed);
// 2^-1 .. 2^-8, as in the ALiBi paper for 8 heads; each batch entry begins with another one.
void draw_slopes(const ConstTensor& slopes, std::int64_t heads);
// N(4, 4)
void draw_sinks(const ConstTensor& sinks, std::uint64_t seed);

}  // namespace onepass::check
