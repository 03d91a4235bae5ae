#include "cpu/amx_emulated.hpp"

#include "cpu/amx/amx.hpp"
#include "cpu/emulated_tiles.hpp"

#include "cpu/amx/kernels/kernels-inl.h"

namespace onepass::cpu::amx {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

Kernels emulated_kernels() { return kernels<EmulatedTiles>(); }

Implementation emulated() {
  return {"cpu.amx.bf16.emulated",
          [](const Request& request) { return plan(request, has_avx512() ? emulated_kernels() : portable_kernels()); }};
}

}  // namespace onepass::cpu::amx
