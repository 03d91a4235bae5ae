// The partial results of tasks, and the gradients as their sums in the order of the parts.
#pragma once
#include <algorithm>
#include <optional>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "base/workspace.hpp"
#include "cpu/backward/cut.hpp"
#include "cpu/common/mask_bounds.hpp"

namespace onepass::cpu::backward {

// backward.hpp, Call: has the shapes. nullptr: tasks write what is final.
struct Parts {
  float *delta = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr, *dbias = nullptr;
  double *dslopes = nullptr, *dsinks = nullptr;
  std::uint8_t *dq_seen = nullptr, *dkv_seen = nullptr;
};
Parts book_parts(Workspace& workspace, const Problem& problem, const Plan& plan);

// Zeros where tasks add, or may leave out what they have nothing for.
void clear(const Problem& problem, const Tensors& arguments, const Plan& plan, const Parts& parts, Executor& executor);
void sum_parts(const Problem& problem, const Tensors& arguments, const Plan& plan, const Parts& parts,
               const Kernels& kernels, Executor& executor);

// bounds: as long as the call.
Call call_of(const Problem& problem, const Tensors& arguments, const flash::Geometry& geometry, const Plan& plan,
             const Parts& parts, const Mods& mods, const std::optional<MaskBounds>& bounds);

// stats(task, head) of every block of rows, run(task, worker) of every task, and the sums of the parts.
template <class Stats, class Run>
void compute(const Call& call, const Plan& plan, const Parts& parts, const Kernels& kernels, Executor& executor,
             const Stats& stats, const Run& run) {
  const Problem& p = call.problem();
  const Tensors& a = call.forward.arguments;
  clear(p, a, plan, parts, executor);
  const std::int64_t blocks = ceil_div(p.seq_q, kStatRows);
  parallel(executor, p.batch * p.heads_q * blocks, [&](std::int64_t t, int) {
    Task task{};
    task.batch = t / (p.heads_q * blocks);
    task.seq = sequence_of(p, a, task.batch);
    task.row_split = t % blocks;
    task.row_lo = std::min(task.row_split * kStatRows, task.seq.seq_q);
    task.row_hi = std::min(task.row_lo + kStatRows, task.seq.seq_q);
    stats(task, t / blocks % p.heads_q);
  });
  for (std::int64_t phase = 0; phase < plan.phases; ++phase) {
    parallel(executor, plan.tasks(p), [&](std::int64_t t, int worker) {
      Task task = task_of(p, plan, phase, t);
      task.seq = sequence_of(p, a, task.batch);
      fit(p, plan.cut, task);
      if (task.key_split == 0 || task.key_lo < task.key_hi) run(task, worker);
    });
  }
  sum_parts(p, a, plan, parts, kernels, executor);
}

}  // namespace onepass::cpu::backward
