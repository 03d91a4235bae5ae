// The inputs of attention and of its backward.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Everything that a forward reads. Each row of q, k and v is drawn by itself; fp8_e4m3 is stored divided by its scales.
// v is N(0.5, 1), or a part of k if the problem says v_in_k. q and k: see Distribution.
void draw_forward(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
// The same, with dout and dlse N(0, 1).
void draw_backward(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

// draw_forward, and tangents N(0, 1). A bias of -inf has a tangent of NaN, which reaches nothing.
void draw_tangents(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

// The inputs of a backward and tangents of all of them, N(0, 1). out, lse, tout and tlse are computed afterwards.
void draw_backward_jvp(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
