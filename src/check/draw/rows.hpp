// The inputs of a softmax over rows, of its backward, of a quantize or of a GEMM.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::check {

inline bool is_drawn_by_rows(const Problem& p) { return of_rows(p.op) || is_gemm(p.op); }

// Draws x (and row_lse), or y and dy, of rank 4. If the seed is odd, one entry of x in 40 is -inf. dy is NaN where y is
// hidden. For a GEMM it draws x, w and column_bias: N(0.2, 1), so that a lost product shows. With one_hot one element
// of each row of x is 100 times as large; with huge the rows of x have all magnitudes.
void draw_rows(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
