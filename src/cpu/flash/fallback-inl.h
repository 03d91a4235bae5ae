// What a task does differently when its first pass left an output that is not finite. Either a row really sees a NaN or
// an infinity, or a weight of 0 met one: a masked key's value (0 * NaN), or a visible value whose weight underflowed.
// The second pass keeps non-finite values out of the products and adds them to the rows that see them, and no visible
// weight may be 0. It costs ordinary input nothing.
#if defined(ONEPASS_CPU_CAREFUL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_CAREFUL_INL_H
#undef ONEPASS_CPU_CAREFUL_INL_H
#else
#define ONEPASS_CPU_CAREFUL_INL_H
#endif

#include <cmath>

#include "cpu/common/simd-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Far below any rounding of O, far above what the products flush to 0.
inline constexpr float kLeastWeight = 0x1p-80f;

// Not by Max, which loses a NaN on NEON.
ONEPASS_HD VF careful_alpha(VF alpha) {
  const VF least = splat(kLeastWeight);
  return hn::IfThenElse(hn::Lt(alpha, least), least, alpha);
}
ONEPASS_HD VF careful_weight(VF score, VF w) { return Arith<VF>::if_neg_inf(score, hn::Zero(DF()), careful_alpha(w)); }

inline bool all_finite(const float* out, std::int64_t columns, int vecs) {
  VF probe = hn::Zero(DF());  // 0 * x is NaN unless x is finite
  for (std::int64_t d = 0; d < columns; ++d)
    for (int v = 0; v < vecs; ++v)
      probe = hn::MulAdd(hn::Zero(DF()), hn::Load(DF(), out + d * kPanel + v * kLanes), probe);
  return hn::AllTrue(DF(), hn::Eq(probe, hn::Zero(DF())));
}

// The block with 0 in place of every value of V that is not finite.
inline Block open_careful_block(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                                std::int64_t first) {
  Block block = open_block(call, task, scratch, first);
  convert_v(call, task, first, block.keys, scratch.v);
  for (std::int64_t i = 0; i < block.keys * call.problem.dim_v; ++i)
    if (!std::isfinite(scratch.v[i])) scratch.v[i] = 0.0f;
  block.v = scratch.v;
  block.v_tiled = true;
  return block;
}

// Adds what open_careful_block left out: weight * value wherever the weight is not the +0 of a masked key (a dropped
// key's is -0: its infinity makes a NaN, as in the formula).
inline void add_poison(const flash::Call& call, const flash::Task& task, const Block& block, const Segments& segments,
                       int vecs, const float* weights, float* out) {
  const ConstTensor& t = call.arguments.v;
  for (std::int64_t k = block.first; k < block.first + block.keys; ++k) {
    const std::int64_t at = row_offset(t, task.seq.batch, task.head_kv, task.seq.k_begin + k);
    for (std::int64_t d = 0; d < call.problem.dim_v; ++d) {
      const float value = load_element(t.data, t.dtype, at + d);
      if (std::isfinite(value)) continue;
      for (int v = 0; v < vecs; ++v) {
        if (k < segments.lo[v] || k >= segments.hi[v]) continue;
        const VF w = hn::Load(DF(), weights + (k - block.first) * kPanel + v * kLanes);
        const auto seen = hn::Ne(hn::BitCast(DU(), w), hn::Zero(DU()));
        float* o = out + d * kPanel + v * kLanes;
        const VF old = hn::Load(DF(), o);
        hn::Store(hn::IfThenElse(hn::RebindMask(DF(), seen), hn::MulAdd(w, splat(value), old), old), DF(), o);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
