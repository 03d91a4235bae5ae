// The numbers of a softmax over rows, or of its backward.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Into x (and row_lse), or y and dy, of rank 4. Where the seed is odd one entry of x in 40 is -inf. dy is NaN where y
// says that nothing was seen.
void draw_rows(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
