// cuda.cublas: cuBLASLt, opened at run time, as the GEMM of many rows. For linear() alone.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cuda {

extern const Implementation kCublasImplementation;

}  // namespace onepass::cuda
