// cuda.gemv: one to four rows times a wide matrix (gemv.cuh). For linear() alone.
#pragma once
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/gemm/gemv_params.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

const Implementation& gemv_implementation();

// False, with a sentence, if the kernel does not compute the problem.
bool select_gemv(const Problem& problem, GemvConfig& config, std::string& why);
KernelProgram gemv_program(const GemvConfig& config, const std::string& arch);
GemvParams gemv_params(const Problem& problem);  // but for the addresses of a call

}  // namespace onepass::cuda
