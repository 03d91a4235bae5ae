// cpu.blas: the fp32 GEMM of oneDNN or a BLAS, opened at run time. For linear() alone, where it was measured faster.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

extern const Implementation kBlasImplementation;

}  // namespace onepass::cpu
