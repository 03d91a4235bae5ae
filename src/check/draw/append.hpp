// The inputs of an append.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Lengths and pages with room for what is new; k_new, v_new and q N(0, 1), some rows with a NaN or an infinity if the
// seed is odd (huge: of all magnitudes, one_hot: one element of a row 100 times as large, rising: a row's number is
// added); angles from 0 to 2 pi.
void draw_append(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
