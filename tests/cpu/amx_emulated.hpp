// The AMX backend on a tile file made of plain arrays: the kernels' own source on any CPU with AVX-512.
#pragma once
#include "cpu/amx/task.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::amx {

bool has_avx512();
Implementation emulated();            // "cpu.amx.bf16.emulated"
Implementation emulated_backward();   // "cpu.amx_backward.emulated"
Implementation emulated_flat_gemm();  // "cpu.flat_gemm.amx.emulated"
Kernels emulated_kernels();

}  // namespace onepass::cpu::amx
