// The kernels of cpu.backward_jvp.*, once per instruction set.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_jvp/kernels.cpp"
#include <hwy/foreach_target.h>

#include <vector>

#include "base/make_once.hpp"
#include "cpu/backward_jvp/backward_jvp-inl.h"
#include "cpu/backward_jvp/stats-inl.h"
#include "cpu/common/flush_to_zero.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void backward_jvp_stats(const backward_jvp::Call& call, const backward::Task& task, std::int64_t head) {
  const FlushToZero mode;
  second_stats(call, task, head);
}
void backward_jvp_run(const backward_jvp::Call& call, const backward::Task& task,
                      const backward_jvp::Scratch& scratch) {
  const FlushToZero mode;
  BackwardJvpTask{call, task, scratch}.run();
}
flash::Geometry backward_jvp_geometry() { return kGeometry; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu::backward_jvp {

std::span<const Kernels> kernels() {
#define ONEPASS_ROW(N, target, isa) \
  Kernels{isa, target, N::backward_jvp_geometry(), N::backward_jvp_stats, N::backward_jvp_run},
  static constinit MakeOnce<const std::vector<Kernels>> all;
  return all.get([] { return std::vector<Kernels>{ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)}; });
#undef ONEPASS_ROW
}

}  // namespace onepass::cpu::backward_jvp
#endif
