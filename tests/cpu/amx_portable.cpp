// The kernels of cpu.amx.bf16 on emulated tiles and vectors, for a CPU without AVX-512.
#include "cpu/amx_emulated.hpp"
#include "cpu/emulated_avx512.hpp"
#include "cpu/emulated_tiles.hpp"

#include "cpu/amx/kernels/kernels-inl.h"

namespace onepass::cpu::amx {

Kernels portable_kernels() { return kernels<EmulatedTiles>(); }

}  // namespace onepass::cpu::amx
