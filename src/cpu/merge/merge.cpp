// cpu.merge: finished partial results (O, LSE) over disjoint key sets become one.
//
// A row's LSE in log2 units is all of its state (from_lse); the joint state (m, l) then says what share of the row each
// partial holds: out = sum_i 2^(lse_i - m) / l * O_i. (The joint LSE would not: beyond 2^53 it is m, whatever l is.)
// Shares are worked out in double, one per row and partial, so that merging hundreds of partials in any order adds no
// error but the rounding of the sum.
#include "cpu/merge/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "cpu/common/place.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kBlock = 256;             // output elements held at once, on the stack
constexpr std::int64_t kTaskElements = 1 << 15;  // of one partial, per task

// A row of any of the tensors: its offset in elements from the row's index in row-major order.
std::int64_t offset_of_row(const ConstTensor& t, int row_dims, std::int64_t row) {
  std::int64_t at = 0;
  for (int i = row_dims - 1; i >= 0; --i) {
    at += row % t.shape[i] * t.stride[i];
    row /= t.shape[i];
  }
  return at;
}

void add_scaled(float* sum, const ConstTensor& t, std::int64_t at, std::int64_t count, float share) {
  with_float_type(t.dtype, [&](auto zero) {
    const auto* x = static_cast<const decltype(zero)*>(t.data) + at;
    for (std::int64_t d = 0; d < count; ++d) sum[d] += share * to_float(x[d]);
  });
}

struct Merge {
  std::span<const ConstTensor> outs, lses;
  const Tensor &out, &lse;
  std::int64_t rows, rows_per_task;

  void row(std::int64_t r) const {
    const auto state_of = [&](std::size_t i) {
      return from_lse(double{static_cast<const float*>(lses[i].data)[offset_of_row(lses[i], lses[i].rank, r)]});
    };
    RowState<double> all;
    for (std::size_t i = 0; i < outs.size(); ++i) all = onepass::merge(all, state_of(i)).state;
    const Rescale<double> to_joint = keep(all);
    const Final<double> joint = finalize(all);

    const int row_dims = out.rank - 1;
    const std::int64_t dim = out.shape[row_dims], out_at = offset_of_row(out, row_dims, r);
    for (std::int64_t from = 0; from < dim; from += kBlock) {
      const std::int64_t count = std::min(kBlock, dim - from);
      float sum[kBlock] = {};
      for (std::size_t i = 0; i < outs.size(); ++i) {
        const RowState<double> one = state_of(i);
        if (one.l == 0) continue;  // the identity: its O is not read
        add_scaled(sum, outs[i], offset_of_row(outs[i], row_dims, r) + from, count,
                   static_cast<float>(weight(one.m, to_joint) * joint.inv_l));
      }
      with_float_type(out.dtype, [&](auto zero) {
        auto* to = static_cast<decltype(zero)*>(out.data) + out_at + from;
        for (std::int64_t d = 0; d < count; ++d) to[d] = from_float<decltype(zero)>(sum[d]);
      });
    }
    // Last, because it may be one of the lses, as out may be one of the outs.
    if (lse.given()) static_cast<float*>(lse.data)[offset_of_row(lse, lse.rank, r)] = static_cast<float>(joint.lse);
  }
  static void task(void* self, std::int64_t task, int) {
    const auto& m = *static_cast<const Merge*>(self);
    for (std::int64_t r = task * m.rows_per_task; r < std::min(m.rows, (task + 1) * m.rows_per_task); ++r) m.row(r);
  }
};

class State final : public PlanState {
 public:
  explicit State(const Request& request)
      : PlanState(request.problem),
        rows_(problem->batch * problem->heads_q * problem->seq_q),
        rows_per_task_(std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, problem->dim_v))) {}

  std::string describe() const override {
    return text(problem->partials, " partial results, ", rows_per_task_, " rows per task, weights in float64");
  }
  void run(const Tensors& t, void*, Executor& executor, void*) const override {
    Merge job{t.outs, t.lses, t.out, t.lse, rows_, rows_per_task_};
    executor.parallel_for(ceil_div(rows_, rows_per_task_), Merge::task, &job);
  }

 private:
  const std::int64_t rows_, rows_per_task_;
};

}  // namespace

constinit const Implementation kMergeImplementation{"cpu.merge", plan_here<State>, kMerge};

}  // namespace onepass::cpu
