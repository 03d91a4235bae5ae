// cpu.flat_gemm.amx on emulated tiles.
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/amx_emulated.hpp"
#include "cpu/emulated_tiles.hpp"

#include "cpu/amx/kernels/flat_gemm-inl.h"

namespace onepass::cpu::amx {

Implementation emulated_flat_gemm() {
  return {"cpu.flat_gemm.amx.emulated",
          [](const Request& request) { return plan_gemm(request, gemm_kernels<EmulatedTiles>()); }, Op::flat_gemm};
}

}  // namespace onepass::cpu::amx
