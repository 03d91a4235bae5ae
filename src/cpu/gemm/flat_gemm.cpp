// The host half of cpu.flat_gemm.*: x as fp32, then tasks of columns.
#include "cpu/gemm/flat_gemm.hpp"

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kColumns = 4, kTaskBytes = 1 << 18;  // of w

class State final : public PlanState {
 public:
  State(const Request& request, const FlatGemmKernels& kernels)
      : PlanState(request.problem), kernels_(kernels), stride_(round_up(problem->k, 16)) {
    Workspace shared, one;
    shared.take<float>(problem->m * stride_);
    one.take<float>(kColumns * stride_);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
    const std::int64_t bytes =
        kColumns * std::max<std::int64_t>(1, problem->k) * static_cast<std::int64_t>(size_of(problem->dtype));
    blocks_per_task_ = std::max<std::int64_t>(1, kTaskBytes / bytes);
  }

  std::string describe() const override {
    return text(kColumns, " rows of w at a time, ", blocks_per_task_ * kColumns, " per task, workspace ",
                memory_.shared_bytes, " bytes and ", memory_.worker_bytes, " per thread");
  }
  void run(const Tensors& t, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    Workspace w(memory);
    float* const x = w.take<float>(p.m * stride_);
    const FlatGemmJob job{p, t, x, stride_};
    parallel(executor, p.m, [&](std::int64_t row, int) { kernels_.widen(job, row, x + row * stride_); });
    const std::int64_t blocks = ceil_div(p.n, kColumns);
    parallel(executor, p.m == 0 ? 0 : ceil_div(blocks, blocks_per_task_), [&](std::int64_t task, int worker) {
      auto* const own = memory_.of_worker(memory, worker).take<float>(kColumns * stride_);
      for (std::int64_t b = task * blocks_per_task_; b < std::min(blocks, (task + 1) * blocks_per_task_); ++b)
        kernels_.columns(job, b * kColumns, own);
    });
  }

 private:
  const FlatGemmKernels& kernels_;
  const std::int64_t stride_;
  std::int64_t blocks_per_task_;
  CallMemory memory_;
};

template <std::int64_t target>
Decision plan_for(const Request& request) {
  if (std::string why = why_elsewhere(*request.problem, target); !why.empty()) return Decision::no(why);
  return {{}, std::make_shared<State>(request, flat_gemm_kernels(target))};
}

}  // namespace

std::span<const Implementation> flat_gemm_implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.flat_gemm." isa, plan_for<target>, kFlatGemm},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu
