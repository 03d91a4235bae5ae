// From the tensors of a flat GEMM to its checked Problem.
#pragma once
#include "onepass/attention.hpp"

namespace onepass {

// x [m, k], w [n, k], y [m, n] and column_bias [n], any strides. Throws Error with one sentence.
Problem flat_gemm_problem_of(const Tensors& tensors);

}  // namespace onepass
