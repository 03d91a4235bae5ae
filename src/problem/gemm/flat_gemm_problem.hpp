// From the tensors of a flat GEMM to its checked Problem, and from its strides to what a BLAS takes.
#pragma once
#include <cstdint>

#include "onepass/attention.hpp"

namespace onepass {

// x [m, k], w [n, k], y [m, n] and column_bias [n], any strides. Throws Error with one sentence.
Problem flat_gemm_problem_of(const Tensors& tensors);
// A matrix as a BLAS takes it, numbers of a row side by side and rows apart: the step between rows; 0: it is none.
std::int64_t row_step(const Dims& stride, std::int64_t rows, std::int64_t numbers);

}  // namespace onepass
