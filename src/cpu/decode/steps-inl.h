// The steps of a task that do not read K or V.
#if defined(ONEPASS_CPU_DECODE_STEPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_STEPS_INL_H
#undef ONEPASS_CPU_DECODE_STEPS_INL_H
#else
#define ONEPASS_CPU_DECODE_STEPS_INL_H
#endif

#include <algorithm>

#include "cpu/decode/one_result-inl.h"
#include "cpu/decode/rows-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

class DecodeSteps : protected DecodeRows {
 protected:
  using DecodeRows::DecodeRows;

  // Empty states, and the rows of q in fp32 with their scale.
  void start(std::int64_t h) const {
    std::fill_n(o_of(h, 0), scratch_.padded_rows * scratch_.dim_v, 0.0f);
    if (checked_) std::fill_n(lost_of(h, 0), scratch_.padded_rows * scratch_.dim_v, 0.0f);
    std::fill_n(m_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, onepass::Arith<float>::neg_inf());
    std::fill_n(l_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, 0.0f);
    if (scratch_.t) std::fill_n(t_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, 0.0f);
    for (std::int64_t r = 0; r < in_groups(rows_); ++r) {
      DecodeRow row;
      describe<1>(h, r, &row);
      const std::int64_t at = row_offset(a_.q, seq_.batch, row.head, seq_.q_begin + row.token);
      const float scale = q_scale(p_) * Descale(a_.q_descale, batch_).at(row.head, row.token);
      with_float_type(a_.q.dtype, [&](auto zero) HWY_ATTR {
        copy_row(static_cast<const decltype(zero)*>(a_.q.data) + at, p_.dim_qk, scale, q_of(h, r));
      });
    }
  }

  // To fp32, padded with zeros to whole vectors.
  template <class S>
  void copy_row(const S* from, std::int64_t dim, float scale, float* to) const {
    for (std::int64_t d = 0; d < dim; d += kLanes) {
      const VF x = d + kLanes <= dim ? load(DF(), from + d) : load_n(DF(), from + d, dim - d);
      hn::Store(x * splat(scale), DF(), to + d);
    }
  }

  // All score features of a chunk: natural, -inf where a key is hidden.
  template <int R>
  void apply_features(const Visit& v, std::int64_t first, DecodeRow* rows) const {
    const DecodeChunk c{v.chunk, static_cast<int>(v.count), static_cast<int>(whole<R>(v.count)),
                        tiles_.of(v.head, v.chunk)};
    const bool plain = !features_ && c.padded == c.count && c.at >= unmasked_.lo && c.at + c.count <= unmasked_.hi;
    if (!plain || p_.dropout_p > 0) describe<R>(v.head, first, rows);
    if (!plain) chunk_scores().template apply<R>(rows, c, scores_of(v.head, first), scratch_.extra);
  }

  void softmax(const Visit& v, const float* phi) const {
    each_group([&](auto size, std::int64_t first) HWY_ATTR {
      constexpr int R = size();
      DecodeRow rows[R];
      apply_features<R>(v, first, rows);
      float* s = scores_of(v.head, first);
      float* const visible = checked_ ? visible_of(v.head, first) : nullptr;
      for (std::int64_t i = 0; visible && i < whole<R>(v.count) * R; i += kLanes)
        hn::Store(hn::IfThenZeroElse(hn::Eq(hn::Load(DF(), s + i), Arith<VF>::neg_inf()), splat(1.0f)), DF(),
                  visible + i);
      softmax_tile<R>(s, whole<R>(v.count), m_of(v.head, first), l_of(v.head, first), t_of(v.head, first),
                      alpha_of(v.head, first), phi);
      if (p_.dropout_p > 0)
        chunk_scores().template drop<R>(rows, {v.chunk, static_cast<int>(v.count), 0, {}}, s, visible);
    });
  }

  // softmax for one result per row.
  void softmax_by_row(const Visit& v, const float* phi) const {
    const DecodeChunk c{v.chunk, static_cast<int>(v.count), static_cast<int>(whole<1>(v.count)),
                        tiles_.of(v.head, v.chunk)};
    const bool plain = unit_.products && c.padded == c.count && c.at >= unmasked_.lo && c.at + c.count <= unmasked_.hi;
    for (std::int64_t r = 0; r < rows_; ++r) {
      float *const s = scores_of(v.head, r), *const visible = checked_ ? visible_of(v.head, r) : nullptr;
      DecodeRow row;
      if (!plain || p_.dropout_p > 0) describe<1>(v.head, r, &row);
      if (!plain) chunk_scores().template apply<1>(&row, c, s, scratch_.extra);
      for (int i = 0; visible && i < c.count; ++i) visible[i] = s[i] == onepass::Arith<float>::neg_inf() ? 0.0f : 1.0f;
      softmax_row(s, c.padded, unit_.to_log2, m_of(v.head, r), l_of(v.head, r), t_of(v.head, r), alpha_of(v.head, r),
                  phi);
      if (p_.dropout_p > 0) chunk_scores().template drop<1>(&row, c, s, nullptr);
    }
  }

  // Where every row sees every key, each product is a visible pair's, and its NaN or infinity belongs in O.
  static HWY_NOINLINE bool any_hidden(const float* visible, std::int64_t count) {
    return std::find(visible, visible + count, 0.0f) != visible + count;
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
