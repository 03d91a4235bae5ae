// The fallback of algebra/nonfinite.hpp for the three sums of a backward pass. Scores and dP are made pair by pair, so
// a NaN stays in the pairs that see it; dQ, dK and dV sum over pairs, where 0 * NaN would spoil what does not see it. A
// row block that has read something not finite keeps it out of these products and adds it to the sums that see it.
#if defined(ONEPASS_CPU_BACKWARD_FALLBACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_FALLBACK_INL_H
#undef ONEPASS_CPU_BACKWARD_FALLBACK_INL_H
#else
#define ONEPASS_CPU_BACKWARD_FALLBACK_INL_H
#endif

#include "cpu/backward/panel-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Whether keys [lo, hi) of K or V are finite.
inline bool finite_keys(const ConstTensor& t, const backward::Task& task, std::int64_t dim) {
  const KeyValueView view(t, task.seq);
  VF probe = hn::Zero(DF());
  flash::with_storage(view.dtype(), [&](auto zero) {
    view.each_run<decltype(zero)>(task.head_kv, task.key_lo, task.key_hi - task.key_lo,
                                  [&](const auto& run, std::int64_t) HWY_ATTR {
                                    const auto* row = run.row;
                                    for (std::int64_t k = 0; k < run.tokens; ++k, row += run.stride) {
                                      std::int64_t d = 0;
                                      for (; d + kLanes <= dim; d += kLanes)
                                        probe = probe_finite(probe, load(DF(), row + d));
                                      if (d < dim) probe = probe_finite(probe, load_n(DF(), row + d, dim - d));
                                    }
                                  });
  });
  return all_zero(probe);
}

inline void zero_nonfinite(float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_finite(x[i])) x[i] = 0.0f;
}

// sums[key][column] += w[key][row] * x for what is not finite in `rows`, Q or dO, wherever the pair is visible: its
// weight is not +0. Column panels of the sums lie `stride` apart.
inline void take_nonfinite_rows(const ConstTensor& rows, const Problem& p, const flash::Task& task,
                                const BackwardPanel& panel, const Segments& segments, std::int64_t first,
                                std::int64_t dim, const float* weights, const float* w, float* sums,
                                std::int64_t stride) {
  for (int lane = 0; lane < panel.rows; ++lane) {
    const int v = lane / kLanes;
    const RowName name = row_name(p, task, panel.row + lane);
    const std::int64_t at = row_offset(rows, task.seq.batch, name.head, task.seq.q_begin + name.token);
    for (std::int64_t d = 0; d < dim; ++d) {
      const float x = load_element(rows.data, rows.dtype, at + d);
      if (is_finite(x)) continue;
      for (std::int64_t k = segments.lo[v]; k < segments.hi[v]; ++k) {
        const std::int64_t i = (k - first) * kPanel + lane;
        float& sum = sums[d / kPanel * stride + (k - first) * kPanel + d % kPanel];
        if (std::bit_cast<std::uint32_t>(weights[i]) != 0) sum += w[i] * x;
      }
    }
  }
}

// dq[column][lane] += dX * x for what is not finite in K.
inline void take_nonfinite_keys(const flash::Call& call, const flash::Task& task, const BackwardPanel& panel,
                                const Segments& segments, const Block& block, const float* weights, const float* ds) {
  const KeyValueView keys(call.arguments.k, task.seq);
  for (std::int64_t k = block.first; k < block.first + block.keys; ++k) {
    for (std::int64_t d = 0; d < call.problem.dim_qk; ++d) {
      const float x = keys.element(task.head_kv, k, d);
      if (is_finite(x)) continue;
      for (int v = 0; v < panel.vecs; ++v) {
        if (k < segments.lo[v] || k >= segments.hi[v]) continue;
        const std::int64_t i = (k - block.first) * kPanel + v * kLanes;
        const auto hidden =
            hn::RebindMask(DF(), hn::Eq(hn::BitCast(DU(), hn::Load(DF(), weights + i)), hn::Zero(DU())));
        float* q = panel.dq + d * kPanel + v * kLanes;
        const VF old = hn::Load(DF(), q);
        hn::Store(hn::IfThenElse(hidden, old, hn::MulAdd(hn::Load(DF(), ds + i), splat(x), old)), DF(), q);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
