// From the strides of a flat GEMM's tensors to what a BLAS takes.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

// A matrix as a BLAS takes it, numbers of a row side by side and rows apart: the step between rows; 0: it is none.
std::int64_t row_step(const Dims& stride, std::int64_t rows, std::int64_t numbers);

}  // namespace onepass
