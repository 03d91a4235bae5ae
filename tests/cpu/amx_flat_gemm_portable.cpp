// The kernels of cpu.flat_gemm.amx on emulated tiles and vectors, for a CPU without AVX-512.
#include "cpu/amx_emulated.hpp"
#include "cpu/emulated_avx512.hpp"
#include "cpu/emulated_tiles.hpp"

#include "cpu/amx/kernels/flat_gemm-inl.h"

namespace onepass::cpu::amx {

GemmKernels portable_gemm_kernels() { return gemm_kernels<EmulatedTiles>(); }

}  // namespace onepass::cpu::amx
