// The fallback of algebra/nonfinite.hpp for a task of rows: the second pass keeps non-finite values out of the
// products, adds them to the rows that see them, and lets no visible weight be 0. It costs ordinary input nothing.
#if defined(ONEPASS_CPU_FALLBACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_FALLBACK_INL_H
#undef ONEPASS_CPU_FALLBACK_INL_H
#else
#define ONEPASS_CPU_FALLBACK_INL_H
#endif

#include "cpu/common/simd-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

ONEPASS_HD VF visible_weight_of(VF score, VF w) {
  return Arith<VF>::if_neg_inf(score, hn::Zero(DF()), visible_weight(w));
}

inline bool all_finite(const float* out, std::int64_t columns, int vecs) {
  VF probe = hn::Zero(DF());
  for (std::int64_t d = 0; d < columns; ++d)
    for (int v = 0; v < vecs; ++v) probe = probe_finite(probe, hn::Load(DF(), out + d * kPanel + v * kLanes));
  return all_zero(probe);
}

// The block with 0 in place of every value of V that is not finite.
inline Block open_finite_block(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                               std::int64_t first) {
  Block block = open_block(call, task, scratch, first);
  convert_v(call, task, first, block.keys, scratch.v);
  for (std::int64_t i = 0; i < block.keys * call.problem.dim_v; ++i)
    if (!is_finite(scratch.v[i])) scratch.v[i] = 0.0f;
  block.v = scratch.v;
  block.v_tiled = true;
  return block;
}

// Adds what open_finite_block left out: weight * value wherever the weight is not the +0 of a masked key (a dropped
// key's is -0: its infinity makes a NaN, as in the formula).
inline void add_nonfinite(const flash::Call& call, const flash::Task& task, const Block& block,
                          const Segments& segments, int vecs, const float* weights, float* out) {
  const KeyValueView values = values_of(call.arguments, task.seq);
  for (std::int64_t k = block.first; k < block.first + block.keys; ++k) {
    for (std::int64_t d = 0; d < call.problem.dim_v; ++d) {
      const float value = values.element(task.head_kv, k, d);
      if (is_finite(value)) continue;
      for (int v = 0; v < vecs; ++v) {
        if (k < segments.lo[v] || k >= segments.hi[v]) continue;
        const VF w = hn::Load(DF(), weights + (k - block.first) * kPanel + v * kLanes);
        const auto visible = hn::Ne(hn::BitCast(DU(), w), hn::Zero(DU()));
        float* o = out + d * kPanel + v * kLanes;
        const VF old = hn::Load(DF(), o);
        hn::Store(hn::IfThenElse(hn::RebindMask(DF(), visible), hn::MulAdd(w, splat(value), old), old), DF(), o);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
