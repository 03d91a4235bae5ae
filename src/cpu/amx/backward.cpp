// cpu.amx_backward on the CPU's own tiles.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/amx/backward.cpp"
#include <hwy/foreach_target.h>

#include "cpu/amx/amx.hpp"
#include "cpu/amx/backward.hpp"
#include "cpu/amx/kernels/backward_kernels-inl.h"
#include "cpu/amx/kernels/tiles.hpp"

#if HWY_ONCE
namespace onepass::cpu::amx {

std::string refuses_backward(const Problem& p) {
  if (p.dtype != DType::bf16)
    return text("requires q, k and v in bf16 (got ", name_of(p.dtype), "), because tiles multiply bf16");
  if (p.out_dtype != DType::bf16) return "requires out and dout in bf16 (got fp32), because tiles multiply bf16";
  return {};
}

Decision plan_backward(const Request& request, const backward::Kernels& kernels) {
  if (std::string why = refuses_backward(*request.problem); !why.empty()) return Decision::no(std::move(why));
  return backward::plan(request, kernels);
}

std::span<const Implementation> backward_implementations() {
  static const Implementation row{"cpu.amx_backward",
                                  [](const Request& request) {
                                    static const backward::Kernels kernels =
                                        N_AVX3::tile_backward<HardwareTiles, hardware_kernels>();
                                    if (std::string why = missing_hardware(); !why.empty()) return Decision::no(why);
                                    return plan_backward(request, kernels);
                                  },
                                  kBackward};
  return {&row, 1};
}

}  // namespace onepass::cpu::amx
#endif
