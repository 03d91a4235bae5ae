// The numbers of a softmax over rows, of its backward, or of a flat GEMM.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::check {

inline bool is_drawn_by_rows(const Problem& p) { return of_rows(p.op) || is_gemm(p.op); }

// Into x (and row_lse), or y and dy, of rank 4. Where the seed is odd one entry of x in 40 is -inf. dy is NaN where y
// says that nothing was seen. Of a GEMM into x, w and column_bias: N(0.2, 1), so that a lost product shows; one_hot:
// one number of each row of x stands out; huge: rows of x of all magnitudes.
void draw_rows(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
