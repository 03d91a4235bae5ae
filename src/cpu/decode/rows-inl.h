// What a task of the few-row kernel keeps of its rows, and all that it does with them that does not touch K or V: the
// same for every type of those.
#if defined(ONEPASS_CPU_DECODE_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_ROWS_INL_H
#undef ONEPASS_CPU_DECODE_ROWS_INL_H
#else
#define ONEPASS_CPU_DECODE_ROWS_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/key_value_view.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/scores-inl.h"
#include "cpu/decode/tile-inl.h"
#include "cpu/decode/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

template <int R>
using Rows = std::integral_constant<int, R>;

// To fp32, padded with zeros to whole vectors.
template <class S>
void copy_row(const S* from, std::int64_t dim, float scale, float* to) {
  for (std::int64_t d = 0; d < dim; d += kLanes) {
    const VF x = d + kLanes <= dim ? load(DF(), from + d) : load_n(DF(), from + d, dim - d);
    hn::Store(x * splat(scale), DF(), to + d);
  }
}

class DecodeRows {
 protected:
  DecodeRows(const DecodeJob& job, std::int64_t task, int worker)
      : p_(job.problem),
        a_(job.arguments),
        cut_(job.cut),
        partials_(job.partials),
        scratch_(job.scratch[worker]),
        params_(job.params) {
    split_ = task % cut_.splits.count;
    const std::int64_t block = task / cut_.splits.count % cut_.head_blocks;
    batch_ = task / cut_.splits.count / cut_.head_blocks;
    head_lo_ = block * cut_.heads;
    heads_ = std::min(cut_.heads, p_.heads_kv - head_lo_);
    seq_ = sequence_of(p_, a_, batch_);
    band_ = band_mask(p_, seq_.seq_q, seq_.seq_k);
    rows_ = seq_.seq_q * p_.group();
    const Range visible = band_.key_range(0, seq_.seq_q);
    const std::int64_t chunk = cut_.splits.chunk_of(std::max<Index>(0, visible.hi - visible.lo));
    keys_.lo = std::min<Index>(visible.hi, visible.lo + split_ * chunk);
    keys_.hi = std::min<Index>(visible.hi, keys_.lo + chunk);
    // Keys visible to every row.
    unmasked_ = {band_.keys_of(seq_.seq_q - 1).lo, band_.keys_of(0).hi};
    features_ = params_.transforms() || params_.hides();
  }

  // Row groups of 4, then 2 or 1; a group of three is one of four whose last row is there twice.
  template <class F>
  void each_group(F f) const {
    for (std::int64_t r = 0; r < rows_;) {
      const std::int64_t left = rows_ - r;
      if (left >= 3)
        f(Rows<4>(), r), r += 4;
      else if (left == 2)
        f(Rows<2>(), r), r += 2;
      else
        f(Rows<1>(), r), r += 1;
    }
  }
  template <int R>
  void describe(std::int64_t h, std::int64_t first, DecodeRow* rows) const {
    for (int r = 0; r < R; ++r) {
      const std::int64_t row = std::min(first + r, rows_ - 1), token = row / p_.group();
      rows[r] = {token, (head_lo_ + h) * p_.group() + row % p_.group(), band_.keys_of(token)};
    }
  }
  float* q_of(std::int64_t h, std::int64_t r) const {
    return scratch_.q + (h * scratch_.padded_rows + r) * scratch_.dim_qk;
  }
  float* o_of(std::int64_t h, std::int64_t r) const {
    return scratch_.o + (h * scratch_.padded_rows + r) * scratch_.dim_v;
  }
  float* m_of(std::int64_t h, std::int64_t r) const {
    return scratch_.m + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }
  float* l_of(std::int64_t h, std::int64_t r) const {
    return scratch_.l + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }

  float* alpha_of(std::int64_t h, std::int64_t r) const {
    return scratch_.alpha + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }
  // [key of the chunk][R]
  float* scores_of(std::int64_t h, std::int64_t r) const {
    return scratch_.scores + (h * scratch_.padded_rows + r) * cut_.chunk;
  }

  void start(std::int64_t h) const {
    std::fill_n(o_of(h, 0), scratch_.padded_rows * scratch_.dim_v, 0.0f);
    std::fill_n(m_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, onepass::Arith<float>::neg_inf());
    std::fill_n(l_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, 0.0f);
    each_group([&](auto size, std::int64_t first) {
      DecodeRow rows[size()];
      describe<size()>(h, first, rows);
      for (int r = 0; r < size(); ++r) {
        const std::int64_t at = row_offset(a_.q, seq_.batch, rows[r].head, seq_.q_begin + rows[r].token);
        const float scale = q_scale(p_) * Descale(a_.q_descale, batch_).at(rows[r].head, rows[r].token);
        with_float_type(a_.q.dtype, [&](auto zero) HWY_ATTR {
          copy_row(static_cast<const decltype(zero)*>(a_.q.data) + at, p_.dim_qk, scale, q_of(h, first + r));
        });
      }
    });
  }

  // All score features of a chunk: natural, -inf where a key is hidden.
  template <int R>
  void apply_features(const Visit& v, std::int64_t first, DecodeRow* rows) const {
    const DecodeChunk c{v.chunk, static_cast<int>(v.count), static_cast<int>(whole<R>(v.count))};
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
      softmax_tile<R>(s, whole<R>(v.count), m_of(v.head, first), l_of(v.head, first), alpha_of(v.head, first), phi);
      if (p_.dropout_p > 0) chunk_scores().template drop<R>(rows, {v.chunk, static_cast<int>(v.count), 0}, s);
    });
  }

  // l of a row group, joined.
  template <int R>
  void join_sums(std::int64_t h, std::int64_t first) const {
    const VF l = over_keys<R>(hn::Load(DF(), l_of(h, first)), [](VF a, VF b) HWY_ATTR { return a + b; });
    hn::Store(l, DF(), l_of(h, first));
  }
  void put(std::int64_t h, std::int64_t r, const DecodeRow& row, const onepass::RowState<float>& state) const {
    const float* const o = o_of(h, r);
    if (partials_.state == nullptr) return finalize_row(p_, a_, seq_, row.head, row.token, &state, o, 1, {});
    const std::int64_t to = partial_row(p_, seq_, row.head, row.token);
    partials_.state_of(to, split_) = state;
    std::copy_n(o, p_.dim_v, partials_.out_of(to, split_));
  }
  // What a row group comes to; with a unified maximum, of the rows that it did not serve.
  template <int R>
  void put_group(std::int64_t h, std::int64_t first) const {
    DecodeRow row[R];
    describe<R>(h, first, row);
    for (std::int64_t r = 0; r < std::min<std::int64_t>(R, rows_ - first); ++r)
      if (!p_.unified_max || left(h, first + r) != 0) put(h, first + r, row[r], {m_of(h, first)[r], l_of(h, first)[r]});
  }
  // Those rows whose largest score of these keys is near enough to phi, or that see none; false if there are others.
  // What is not finite is for the other way, too, and so is what weights below 1 have left of V where it is small.
  bool epilogue_served(std::int64_t h, float phi) const {
    bool all = true;
    each_group([&](auto size, std::int64_t first) {
      constexpr int R = size();
      join_sums<R>(h, first);
      DecodeRow row[R];
      describe<R>(h, first, row);
      for (std::int64_t r = 0; r < std::min<std::int64_t>(R, rows_ - first); ++r) {
        const float row_max = m_of(h, first)[r], l = l_of(h, first)[r];
        const bool served = (row_max == onepass::Arith<float>::neg_inf() || std::abs(row_max - phi) <= kUnifiedRange) &&
                            finite(o_of(h, first + r), scratch_.dim_v) && l - l == 0 &&
                            (row_max >= phi || l == 0 || stands(o_of(h, first + r), scratch_.dim_v));
        left(h, first + r) = served ? 0.0f : 1.0f;
        if (served)
          put(h, first + r, row[r], {phi, l});
        else
          all = false;
      }
    });
    return all;
  }
  float& left(std::int64_t h, std::int64_t r) const { return scratch_.left[h * scratch_.padded_rows + r]; }

  static bool finite(const float* x, std::int64_t count) {
    VF probe = hn::Zero(DF());
    for (std::int64_t i = 0; i < count; i += kLanes) probe = probe_finite(probe, hn::Load(DF(), x + i));
    return all_zero(probe);
  }
  // Whether underflow is far: numbers below 2^-126 become 0, of which 2^22 are 2^-24 of 2^-80.
  static bool stands(const float* x, std::int64_t count) {
    VF most = hn::Zero(DF());
    for (std::int64_t i = 0; i < count; i += kLanes) most = hn::Max(most, hn::Abs(hn::Load(DF(), x + i)));
    return hn::GetLane(hn::MaxOfLanes(DF(), most)) >= 0x1p-80f;
  }

  static std::int64_t vectors(std::int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }  // whole ones
  template <int R>
  static std::int64_t whole(std::int64_t keys) {
    return (keys + kLanes / R - 1) / (kLanes / R) * (kLanes / R);
  }
  ChunkScores chunk_scores() const { return {p_, a_, params_, band_, batch_, scratch_.mods}; }

  const Problem& p_;
  const Tensors& a_;
  const DecodeCut& cut_;
  const Partials& partials_;
  const DecodeScratch& scratch_;
  const ScoreParams& params_;
  Sequence seq_;
  BandMask band_;
  std::int64_t batch_ = 0, head_lo_ = 0, heads_ = 0, split_ = 0, rows_ = 0;
  Range keys_, unmasked_;
  bool features_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
