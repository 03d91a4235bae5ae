// cuda.plain_gemm: products that no tuned kernel accepts (plain_gemm.cuh).
#pragma once
#include <cstdint>
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/gemm/plain_gemm_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kPlainGemmImplementation;

Selected<PlainGemmConfig> select_plain_gemm(const Problem& problem);
KernelProgram plain_gemm_program(const PlainGemmConfig& config, const std::string& arch);
PlainGemmParams plain_gemm_params(const Problem& problem);  // but for the addresses of a call
std::int64_t plain_gemm_blocks(const Problem& problem);

}  // namespace onepass::cuda
