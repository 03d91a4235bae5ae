// The AMX backend on a tile file made of plain arrays: the kernels' own source on any CPU. Where it has no AVX-512,
// that is emulated, too (emulated_avx512.hpp), but in the backward, whose vectors are Highway's.
#pragma once
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/amx/task.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::amx {

bool has_avx512();
Implementation emulated();            // "cpu.amx.bf16.emulated"
Implementation emulated_backward();   // "cpu.amx_backward.emulated"
Implementation emulated_flat_gemm();  // "cpu.flat_gemm.amx.emulated"
Kernels emulated_kernels();           // with AVX-512
Kernels portable_kernels();           // without
GemmKernels portable_gemm_kernels();

}  // namespace onepass::cpu::amx
