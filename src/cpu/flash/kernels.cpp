// The kernels of cpu.flash.*, once per instruction set.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash/kernels.cpp"
#include <hwy/foreach_target.h>

#include <vector>

#include "base/make_once.hpp"
#include "cpu/common/flush_to_zero.hpp"
#include "cpu/flash/joined-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void flash_pack(const flash::Call& call, const flash::Task& task, std::int64_t key_lo, std::int64_t key_hi) {
  pack_head(call, task, key_lo, key_hi);
}
void flash_run(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch) {
  const FlushToZero mode;
  if (call.join_every > 0) return JoinedTask(call, task, scratch).run();
  FlashTask{call, task, scratch}.run();
}
flash::Geometry flash_geometry() { return kGeometry; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu::flash {

std::span<const Kernels> kernels() {
#define ONEPASS_ROW(N, target, isa) Kernels{isa, target, N::flash_geometry(), N::flash_pack, N::flash_run},
  static constinit MakeOnce<const std::vector<Kernels>> all;
  return all.get([] { return std::vector<Kernels>{ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)}; });
#undef ONEPASS_ROW
}

}  // namespace onepass::cpu::flash
#endif
