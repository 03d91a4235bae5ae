// cuda.gemv: one to four rows times a wide matrix (gemv.cuh). For linear() alone.
#pragma once
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/gemm/gemv_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kGemvImplementation;

Selected<GemvConfig> select_gemv(const Problem& problem);
KernelProgram gemv_program(const GemvConfig& config, const std::string& arch);
GemvParams gemv_params(const Problem& problem);  // but for the addresses of a call

}  // namespace onepass::cuda
