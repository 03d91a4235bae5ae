// From the tensors of a quantize to its checked Problem, and what its numbers are: one definition for every backend.
#pragma once
#include <array>
#include <cstdint>

#include "onepass/attention.hpp"

namespace onepass {

inline bool is_quantize(const Tensors& t) { return t.descale.given() || t.mean.given(); }

// x [.., n] and y of one shape of rank 1 to 4, what is missing in front having size 1; descale [batch|1, heads|1,
// blocks|1] and mean [batch, heads, n]. Throws Error with one sentence.
Problem quantize_problem_of(const Tensors& tensors, const Attention& attention);

// How many columns a rotation mixes: the largest power of two that divides the row.
constexpr std::int64_t rotated_together(std::int64_t n) { return n & -n; }
// Bit c: column c changes its sign ahead of the rotation. Bit 31 of word c % 4 of the Philox block with counter (c / 4,
// 0, 0, 0) and the seed as key.
std::array<std::uint32_t, 8> rotation_signs(std::uint64_t seed);

}  // namespace onepass
