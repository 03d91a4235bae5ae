// The rows of q, k and v, and of a backward's dout and dlse.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Each row is drawn by itself. Lengths, pages and scales must be drawn before; fp8_e4m3 is stored divided by its
// scales. v is N(0.5, 1), or a part of k if the problem says v_in_k. q and k: see Distribution.
void draw_attention(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
// N(0, 1)
void draw_upstream(const Problem& problem, const Tensors& tensors, std::uint64_t seed);

}  // namespace onepass::check
