// The kernels of cpu.jvp.*, once per instruction set.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/jvp/kernels.cpp"
#include <hwy/foreach_target.h>

#include <vector>

#include "base/make_once.hpp"
#include "cpu/common/flush_to_zero.hpp"
#include "cpu/jvp/jvp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void jvp_pack(const flash::Call& call, const flash::Task& task, std::int64_t key_lo, std::int64_t key_hi) {
  pack_head(call, task, key_lo, key_hi);
}
void jvp_run(const jvp::Call& call, const flash::Task& task, const jvp::Scratch& scratch) {
  const FlushToZero mode;
  JvpTask{call, task, scratch}.run();
}
flash::Geometry jvp_geometry() { return kGeometry; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu::jvp {

std::span<const Kernels> kernels() {
#define ONEPASS_ROW(N, target, isa) Kernels{isa, target, N::jvp_geometry(), N::jvp_pack, N::jvp_run},
  static constinit MakeOnce<const std::vector<Kernels>> all;
  return all.get([] { return std::vector<Kernels>{ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)}; });
#undef ONEPASS_ROW
}

}  // namespace onepass::cpu::jvp
#endif
