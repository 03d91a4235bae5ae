// The rows of q, k and v, and of a backward's dout and dlse: where the scores of a row come from.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Each row is drawn by itself; fp8_e4m3 is stored divided by its factors, which are there already, as are lengths and
// pages. v = N(0.5, 1); where v lies in k it is k's. q and k: see Distribution.
void draw_attention(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
// N(0, 1)
void draw_upstream(const Problem& problem, const Tensors& tensors, std::uint64_t seed);

}  // namespace onepass::check
