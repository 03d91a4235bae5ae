// Computed once per row before everything else: D = rowsum(dO * O) - dLSE + dH H, for the entropy H, and from it the
// gradient of the sinks.
// And at the end: sums of the parts that tasks have left.
#if defined(ONEPASS_CPU_BACKWARD_STATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_STATS_INL_H
#undef ONEPASS_CPU_BACKWARD_STATS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_STATS_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "algebra/ceil_div.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// sum of out * dout. A number of `out` that is exactly 0 stands for no visible key: it is 0 times whatever dout holds.
template <class T>
inline float output_dot(const T* out, const T* dout, std::int64_t dim) {
  VF sum = hn::Zero(DF());
  const auto take = [&](VF o, VF g)
                        HWY_ATTR { sum = hn::MulAdd(o, hn::IfThenZeroElse(hn::Eq(o, hn::Zero(DF())), g), sum); };
  std::int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) take(load(DF(), out + d), load(DF(), dout + d));
  if (d < dim) take(load_n(DF(), out + d, dim - d), load_n(DF(), dout + d, dim - d));
  return hn::GetLane(hn::SumOfLanes(DF(), sum));
}

// Rows [row_lo, row_hi) of one query head; rows are tokens here.
inline void row_stats(const backward::Call& call, const backward::Task& task, std::int64_t head) {
  const Problem& p = call.problem();
  const Tensors& a = call.forward.arguments;
  const float sink = p.sinks ? static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]] : 0.0f;
  const bool wanted = call.wants_ds() || call.dsinks;
  double sinks = 0;
  for (std::int64_t i = task.row_lo; i < task.row_hi; ++i) {
    const std::int64_t row = task.seq.q_begin + i;
    const float lse = static_cast<const float*>(a.lse.data)[lse_offset(a.lse, task.seq.batch, head, row)];
    float delta = 0;
    if (wanted)
      delta = flash::with_storage(a.out.dtype, [&](auto zero) {
        using T = decltype(zero);
        return output_dot(static_cast<const T*>(a.out.data) + row_offset(a.out, task.seq.batch, head, row),
                          static_cast<const T*>(a.dout.data) + row_offset(a.dout, task.seq.batch, head, row), p.dim_v);
      });
    const auto number = [&](const ConstTensor& t) {
      return static_cast<const float*>(t.data)[lse_offset(t, task.seq.batch, head, row)];
    };
    if (p.dlse) delta -= number(a.dlse);
    const float dentropy = p.dentropy && !saw_nothing(lse) ? number(a.dentropy) : 0.0f;
    if (p.dentropy) delta += dentropy * number(a.entropy);
    if (saw_nothing(lse)) delta = 0;
    call.delta[partial_row(p, task.seq, head, i)] = delta;
    if (p.sinks) {
      const double weight = sink_weight(sink, lse);
      sinks -= weight * (static_cast<double>(delta) + static_cast<double>(dentropy) * onepass::log_weight(weight));
    }
  }
  const std::int64_t blocks = ceil_div(p.seq_q, backward::kStatRows);
  if (call.dsinks) call.dsinks[(task.batch * p.heads_q + head) * blocks + task.row_split] = sinks;
}

// to[dim] = the sum of rows first, first + 1, ... (`count` of them, `stride` apart) in this order.
inline void sum_rows(const float* rows, std::int64_t stride, std::int64_t first, std::int64_t count, std::int64_t dim,
                     DType dtype, void* to) {
  rows += first * stride;
  flash::with_storage(dtype, [&](auto zero) {
    auto* out = static_cast<decltype(zero)*>(to);
    for (std::int64_t d = 0; d < dim; d += kLanes) {
      const std::int64_t left = dim - d;
      VF sum = hn::Zero(DF());
      for (std::int64_t i = 0; i < count; ++i) {
        const float* from = rows + i * stride + d;
        sum = sum + (left >= kLanes ? load(DF(), from) : load_n(DF(), from, left));
      }
      left >= kLanes ? store(sum, DF(), out + d) : store_n(sum, DF(), out + d, left);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
