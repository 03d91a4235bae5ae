// The rotation of a quantize: one definition for every backend.
#pragma once
#include <array>
#include <cstdint>

namespace onepass {

// How many columns a rotation mixes: the largest power of two that divides the row.
constexpr std::int64_t rotated_together(std::int64_t n) { return n & -n; }
// Bit c: column c changes its sign ahead of the rotation. Bit 31 of word c % 4 of the Philox block with counter (c / 4,
// 0, 0, 0) and the seed as key.
std::array<std::uint32_t, 8> rotation_signs(std::uint64_t seed);

}  // namespace onepass
