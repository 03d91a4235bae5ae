// Computed once per row before everything else: D, its derivative, and from them the derivative of the sinks' gradient.
#if defined(ONEPASS_CPU_BACKWARD_JVP_STATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_JVP_STATS_INL_H
#undef ONEPASS_CPU_BACKWARD_JVP_STATS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_JVP_STATS_INL_H
#endif

#include "cpu/backward/stats-inl.h"
#include "cpu/backward_jvp/backward_jvp.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Rows [row_lo, row_hi) of one query head; rows are tokens here.
inline void second_stats(const backward_jvp::Call& call, const backward::Task& task, std::int64_t head) {
  const Problem& p = call.primal.problem();
  const Tensors& a = call.arguments;
  const auto of_head = [&](const ConstTensor& t) {
    return t.given() ? static_cast<const float*>(t.data)[head * t.stride[0]] : 0.0f;
  };
  const float sink = of_head(a.sinks), tsink = of_head(a.tsinks);
  double sinks = 0;
  for (std::int64_t i = task.row_lo; i < task.row_hi; ++i) {
    const std::int64_t row = task.seq.q_begin + i, at = partial_row(p, task.seq, head, i);
    const auto number = [&](const ConstTensor& t) {
      return static_cast<const float*>(t.data)[lse_offset(t, task.seq.batch, head, row)];
    };
    const auto dot = [&](const ConstTensor& result, const ConstTensor& gradient) {
      return flash::with_storage(result.dtype, [&](auto zero) {
        using T = decltype(zero);
        return output_dot(static_cast<const T*>(result.data) + row_offset(result, task.seq.batch, head, row),
                          static_cast<const T*>(gradient.data) + row_offset(gradient, task.seq.batch, head, row),
                          p.dim_v);
      });
    };
    const float lse = number(a.lse);
    float delta = 0, tdelta = 0;
    if (!saw_nothing(lse)) {
      delta = dot(a.out, a.dout);
      tdelta = dot(a.tout, a.dout);
      if (call.has_tdout()) tdelta += dot(a.out, a.tdout);
      if (p.dlse) delta -= number(a.dlse);
      if (p.tdlse) tdelta -= number(a.tdlse);
      if (p.sinks)
        sinks -= sink_weight(sink, lse) *
                 ((static_cast<double>(tsink) - static_cast<double>(number(a.tlse))) * static_cast<double>(delta) +
                  static_cast<double>(tdelta));
    }
    call.primal.delta[at] = delta;
    call.tdelta[at] = tdelta;
  }
  const std::int64_t blocks = ceil_div(p.seq_q, backward::kStatRows);
  if (call.primal.dsinks) call.primal.dsinks[(task.batch * p.heads_q + head) * blocks + task.row_split] = sinks;
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
