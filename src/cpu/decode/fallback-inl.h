// Few rows once more, where their outputs are not finite.
#if defined(ONEPASS_CPU_DECODE_FALLBACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_FALLBACK_INL_H
#undef ONEPASS_CPU_DECODE_FALLBACK_INL_H
#else
#define ONEPASS_CPU_DECODE_FALLBACK_INL_H
#endif

#include "cpu/decode/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// The fallback of algebra/nonfinite.hpp: a weight of 0 times a NaN or infinity that is not visible to the row has
// spoilt O. m and l are right; O is summed again over the keys visible to each row, in memory order.
template <class T>
template <int R>
HWY_NOINLINE void Decode<T>::recompute(std::int64_t h, std::int64_t first) const {
  std::fill_n(o_of(h, first), R * scratch_.dim_v, 0.0f);
  const Dropout dropout = Dropout::of(p_.dropout_p, p_.seed);
  for (std::int64_t at = keys_.lo; at < keys_.hi; at += cut_.chunk) {
    const std::int64_t count = std::min<std::int64_t>(cut_.chunk, keys_.hi - at);
    Visit visit{false, h, at, count, at, 0};
    for (; visit.key < at + count; visit.key += cut_.tile) {
      visit.keys = std::min(cut_.tile, at + count - visit.key);
      with_rows(copy_k_, k_, p_.dim_qk, scratch_.dim_qk, visit,
                [&](const auto& k) HWY_ATTR { scores_of_group<R>(visit, first, k, {}); });
    }
    DecodeRow rows[R];
    apply_features<R>(visit, first, rows);
    describe<R>(h, first, rows);
    for (std::int64_t key = 0; key < count; ++key) {
      for (int r = 0; r < R; ++r) {
        const float s = scores_of(h, first)[key * R + r];
        if (s == onepass::Arith<float>::neg_inf()) continue;
        constexpr float kFactor = static_cast<float>(kLog2e);
        const float w = onepass::weight(s, kFactor, onepass::refer_to(m_of(h, first)[r], kFactor));
        const T* value = v_.template row<T>(head_lo_ + h, at + key);
        const float factor = v_.factor(head_lo_ + h, at + key);
        const float kept = dropout.active()
                               ? dropout.factor(static_cast<unsigned>(batch_), static_cast<unsigned>(rows[r].head),
                                                static_cast<unsigned>(rows[r].token), static_cast<unsigned>(at + key))
                               : 1.0f;
        float* o = o_of(h, first + r);
        for (std::int64_t d = 0; d < p_.dim_v; ++d) {
          const float x = factor * to_float(value[d]) + v_.mean(head_lo_ + h, d);
          o[d] += kept * onepass::visible_weight(w, x) * x;
        }
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
