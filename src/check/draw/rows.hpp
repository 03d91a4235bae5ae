// The inputs of a softmax over rows, of its backward, of a quantize and of a GEMM.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::check {

// x and row_lse. If the seed is odd, one entry of x in 40 is -inf.
void draw_softmax(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
// y and dy. dy is NaN where y is hidden.
void draw_softmax_backward(const Problem& problem, const Tensors& tensors, std::uint64_t seed,
                           Distribution distribution);
// x of a quantize.
void draw_numbers(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
// x, w and column_bias: N(0.2, 1), so that a lost product shows. With one_hot one element of each row of x is 100 times
// as large; with huge the rows of x have all magnitudes.
void draw_matrices(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
