// The kernels of cpu.backward.*, once per instruction set.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward/kernels.cpp"
#include <hwy/foreach_target.h>

#include <vector>

#include "base/make_once.hpp"
#include "cpu/backward/backward-inl.h"
#include "cpu/backward/stats-inl.h"
#include "cpu/common/flush_to_zero.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void backward_stats(const backward::Call& call, const backward::Task& task, std::int64_t head) {
  const FlushToZero mode;
  row_stats(call, task, head);
}
void backward_run(const backward::Call& call, const backward::Task& task, const backward::Scratch& scratch) {
  const FlushToZero mode;
  const VectorProducts products{call, task, scratch};
  BackwardTask<VectorProducts>{call, task, scratch, products}.run();
}
void backward_sum(const float* rows, std::int64_t stride, std::int64_t first, std::int64_t count, std::int64_t dim,
                  DType dtype, void* to) {
  sum_rows(rows, stride, first, count, dim, dtype, to);
}
flash::Geometry backward_geometry() { return kGeometry; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu::backward {

std::span<const Kernels> kernels() {
#define ONEPASS_ROW(N, target, isa) \
  Kernels{isa, target, N::backward_geometry(), N::backward_stats, N::backward_run, N::backward_sum},
  static constinit MakeOnce<const std::vector<Kernels>> all;
  return all.get([] { return std::vector<Kernels>{ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)}; });
#undef ONEPASS_ROW
}

}  // namespace onepass::cpu::backward
#endif
