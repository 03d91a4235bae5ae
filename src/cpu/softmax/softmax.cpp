// The host half of cpu.softmax.*: the cut of rows into tasks, and the merging of a long row's pieces.
#include "cpu/softmax/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "algebra/ceil_div.hpp"
#include "algebra/scalar.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kStreamedBytes = std::int64_t{8}
                                        << 20;  // results that would push their inputs out of the caches
constexpr std::int64_t kTaskNumbers = 32768;

// In order: the bits are the same for any number of threads.
PieceState joined(const SoftmaxJob& job, const PieceState* pieces) {
  if (is_backward(job.p.op)) {
    PieceState all{0, 0};
    for (std::int64_t i = 0; i < job.pieces; ++i) all.l += pieces[i].l;
    return all;
  }
  RowState<double> all;
  for (std::int64_t i = 0; i < job.pieces; ++i)
    all = merge_exactly(all, RowState<double>{double{pieces[i].m}, pieces[i].l}, double{job.factor}).state;
  return {static_cast<float>(all.m), all.l};
}

void write_lse(const SoftmaxJob& job, std::int64_t row, const PieceState& s) {
  if (!job.p.want_lse) return;
  const double lse = s.l == 0 ? Arith<double>::neg_inf() : double{s.m} * double{job.unit} + std::log(s.l);
  static_cast<float*>(job.t.lse.data)[job.lse(row)] = static_cast<float>(lse);
}

class State final : public PlanState {
 public:
  State(const Request& request, const SoftmaxKernels& kernels)
      : PlanState(request.problem), kernels_(kernels), job_(*problem, Tensors{}) {
    const Problem& p = *problem;
    rows_ = p.batch * p.heads_q * p.seq_q;
    rows_per_task_ = std::max<std::int64_t>(1, kTaskNumbers / std::max<std::int64_t>(1, p.seq_k));
    Workspace shared, one;
    if (job_.pieces > 1) shared.take<PieceState>(rows_ * job_.pieces);
    one.take<float>(kSoftmaxScratch);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
  }

  std::string describe() const override {
    return text(job_.pieces > 1 ? text("rows in ", job_.pieces, " pieces of ", kKeptNumbers, ", read twice")
                                : text(rows_per_task_, " rows per task, read once"),
                ", ", kRowChunk, " elements at a time", job_.stream ? ", non-temporal stores" : "", ", workspace ",
                memory_.shared_bytes, " bytes and ", memory_.worker_bytes, " per thread");
  }

  void run(const Tensors& t, void* memory, Executor& executor, void*) const override {
    const SoftmaxJob job(*problem, t);
    Workspace w(memory);
    PieceState* const states = job.pieces > 1 ? w.take<PieceState>(rows_ * job.pieces) : nullptr;
    const auto own = [&](int worker) { return memory_.of_worker(memory, worker).take<float>(kSoftmaxScratch); };
    if (job.n == 0) return empty_rows(job);
    if (job.pieces == 1) {
      parallel(executor, ceil_div(rows_, rows_per_task_), [&](std::int64_t task, int worker) {
        for (std::int64_t r = task * rows_per_task_; r < std::min(rows_, (task + 1) * rows_per_task_); ++r) {
          if (job.p.row_lse) {
            kernels_.write(job, r, 0, {}, own(worker));
            continue;
          }
          const PieceState s = kernels_.reduce(job, r, 0, own(worker));
          write_lse(job, r, s);
          if (!job.p.lse_only) kernels_.write_kept(job, r, s, own(worker));
        }
      });
      return;
    }
    if (!job.p.row_lse)
      parallel(executor, rows_ * job.pieces, [&](std::int64_t task, int worker) {
        states[task] = kernels_.reduce(job, task / job.pieces, task % job.pieces, own(worker));
      });
    parallel(executor, rows_ * (job.p.lse_only ? 1 : job.pieces), [&](std::int64_t task, int worker) {
      const std::int64_t row = job.p.lse_only ? task : task / job.pieces,
                         piece = job.p.lse_only ? 0 : task % job.pieces;
      const PieceState s = job.p.row_lse ? PieceState{} : joined(job, states + row * job.pieces);
      if (piece == 0) write_lse(job, row, s);
      if (!job.p.lse_only) kernels_.write(job, row, piece, s, own(worker));
    });
  }

 private:
  void empty_rows(const SoftmaxJob& job) const {
    for (std::int64_t r = 0; r < rows_; ++r) write_lse(job, r, {Arith<float>::neg_inf(), 0});
  }

  const SoftmaxKernels& kernels_;
  const SoftmaxJob job_;  // without tensors: what the problem alone decides
  std::int64_t rows_, rows_per_task_;
  CallMemory memory_;
};

template <std::int64_t target>
Decision plan_for(const Request& request) {
  if (std::string why = why_elsewhere(*request.problem, target); !why.empty()) return Decision::no(why);
  return {{}, std::make_shared<State>(request, softmax_kernels(target, is_backward(request.problem->op)))};
}

}  // namespace

SoftmaxJob::SoftmaxJob(const Problem& problem, const Tensors& tensors)
    : p(problem),
      t(tensors),
      x(p.layout.x, p),
      mask(p.layout.bool_mask, p),
      row_lse(p.layout.row_lse, p),
      y(p.layout.y, p),
      lse(p.layout.lse, p),
      dy(p.layout.dy, p),
      dx(p.layout.dx, p) {
  const double s = p.effective_scale();
  scale = static_cast<float>(s);
  const bool positive = scale >= std::numeric_limits<float>::min();
  first = positive ? 1.0f : scale;
  unit = positive ? scale : 1.0f;
  factor = static_cast<float>((positive ? s : 1.0) * kLog2e);
  n = p.seq_k;
  pieces = std::max<std::int64_t>(1, ceil_div(n, kKeptNumbers));
  const DType stored = !is_backward(p.op) ? p.out_dtype : p.dtype;
  stream = p.batch * p.heads_q * p.seq_q * n * static_cast<std::int64_t>(size_of(stored)) >= kStreamedBytes;
}

std::span<const Implementation> softmax_implementations() {
#define ONEPASS_ROW(N, target, isa)                               \
  Implementation{"cpu.softmax." isa, plan_for<target>, kSoftmax}, \
      Implementation{"cpu.softmax_backward." isa, plan_for<target>, kSoftmaxBackward},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu
