// cpu.flat_gemm.amx on emulated tiles.
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/amx_emulated.hpp"
#include "cpu/emulated_tiles.hpp"

#include "cpu/amx/kernels/flat_gemm-inl.h"

namespace onepass::cpu::amx {

Implementation emulated_flat_gemm() {
  return {"cpu.flat_gemm.amx.emulated",
          [](const Request& request) {
            return plan_gemm(request, has_avx512() ? gemm_kernels<EmulatedTiles>() : portable_gemm_kernels());
          },
          kFlatGemm};
}

}  // namespace onepass::cpu::amx
