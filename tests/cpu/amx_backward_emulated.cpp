// cpu.amx_backward on emulated tiles.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/amx_backward_emulated.cpp"
#include <hwy/foreach_target.h>

#include "cpu/amx/backward.hpp"
#include "cpu/amx/kernels/backward_kernels-inl.h"
#include "cpu/amx_emulated.hpp"
#include "cpu/emulated_tiles.hpp"

#if HWY_ONCE
namespace onepass::cpu::amx {

Implementation emulated_backward() {
  return {"cpu.amx_backward.emulated",
          [](const Request& request) {
            static const backward::Kernels kernels = N_AVX3::tile_backward<EmulatedTiles, emulated_kernels>();
            return plan_backward(request, kernels);
          },
          kBackward};
}

}  // namespace onepass::cpu::amx
#endif
