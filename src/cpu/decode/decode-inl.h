// One task of the few-row kernel: one sequence, some K/V heads, one range of keys.
#if defined(ONEPASS_CPU_DECODE_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_DECODE_INL_H
#undef ONEPASS_CPU_DECODE_DECODE_INL_H
#else
#define ONEPASS_CPU_DECODE_DECODE_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/decode/decode.hpp"
#include "cpu/decode/scores-inl.h"
#include "cpu/decode/tile-inl.h"
#include "cpu/decode/walk-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

template <int R>
using Rows = std::integral_constant<int, R>;

// T: the storage type of k and v.
template <class T>
class Decode {
 public:
  Decode(const DecodeJob& job, std::int64_t task, int worker)
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
    k_ = onepass::keys_of(a_, seq_);
    v_ = values_of(a_, seq_);
    band_ = band_mask(p_, seq_.seq_q, seq_.seq_k);
    rows_ = seq_.seq_q * p_.group();
    const Range visible = band_.key_range(0, seq_.seq_q);
    const std::int64_t chunk = cut_.splits.chunk_of(std::max<Index>(0, visible.hi - visible.lo));
    keys_.lo = std::min<Index>(visible.hi, visible.lo + split_ * chunk);
    keys_.hi = std::min<Index>(visible.hi, keys_.lo + chunk);
    // Keys visible to every row.
    unmasked_ = {band_.keys_of(seq_.seq_q - 1).lo, band_.keys_of(0).hi};
    features_ = params_.transforms() || params_.hides();
    // fp8_e4m3 is converted once for all rows of a head: 8 instructions a vector.
    constexpr bool kConvert = sizeof(T) == 1;
    copy_k_ = kConvert || !fills_vectors(p_.dim_qk);
    copy_v_ = kConvert || !fills_vectors(p_.dim_v);
  }

  // With a unified maximum all of it by that; rows that it does not serve by their own maxima, as otherwise all. Once
  // an output is not finite though its row's weights are, values are checked (accumulate_checked).
  void run() {
    if (p_.unified_max) {
      const float phi = *p_.unified_max;
      pass(&phi);
      for (std::int64_t h = 0; h < heads_; ++h) checked_ = checked_ || spoiled(h);
      bool served = true;
      for (std::int64_t h = 0; h < heads_; ++h) served = epilogue_served(h, phi) && served;
      if (served) return;
    }
    if (!pass(nullptr)) {
      checked_ = true;
      pass(nullptr);
    }
    for (std::int64_t h = 0; h < heads_; ++h) epilogue(h);
  }

 private:
  // The whole algorithm: (m, l, O) of each head moves through the chunks. False if values have to be checked; that is
  // looked at every kCheck chunks, and at the end.
  bool pass(const float* phi) const {
    const std::int64_t check = kCheck * cut_.chunk;
    for (std::int64_t h = 0; h < heads_; ++h) start(h);
    Walk walk(cut_, keys_, heads_), ahead(cut_, keys_, heads_);
    Visit v, later;
    for (std::int64_t i = 0; i < cut_.lead; ++i) ahead.next(later);
    while (walk.next(v)) {
      const Ahead fetched = ahead.next(later) ? fetch(later) : Ahead();
      if (!v.values) {
        scores(v, fetched);
      } else {
        if (v.key == v.chunk) softmax(v, phi);
        accumulate(v, fetched);
        const bool last = v.key + v.keys == v.chunk + v.count;
        if (last && !phi && !checked_ && ((v.chunk - keys_.lo) % check == 0 || v.chunk + v.count == keys_.hi) &&
            spoiled(v.head))
          return false;
      }
    }
    return true;
  }
  static constexpr std::int64_t kCheck = 8;

  // Returns true if a row of a head has an output that is not finite, and weights that are.
  bool spoiled(std::int64_t h) const {
    bool any = false;
    each_group([&](auto size, std::int64_t first) HWY_ATTR {
      constexpr int R = size();
      const std::int64_t rows = std::min<std::int64_t>(R, rows_ - first);
      if (finite(o_of(h, first), rows * scratch_.dim_v)) return;
      for (std::int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        for (std::int64_t lane = r; lane < kLanes; lane += R) sum += l_of(h, first)[lane];
        any = any || (onepass::is_finite(sum) && !finite(o_of(h, first + r), scratch_.dim_v));
      }
    });
    return any;
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
  float* lost_of(std::int64_t h, std::int64_t r) const {
    return scratch_.lost + (h * scratch_.padded_rows + r) * scratch_.dim_v;
  }
  // [key of the chunk][R]
  float* visible_of(std::int64_t h, std::int64_t r) const {
    return scratch_.visible + (h * scratch_.padded_rows + r) * cut_.chunk;
  }
  float* scores_of(std::int64_t h, std::int64_t r) const {
    return scratch_.scores + (h * scratch_.padded_rows + r) * cut_.chunk;
  }

  // The first run of a tile: all of it but where pages end inside.
  Keys<T> keys_of(const KeyValueView& view, const Visit& v) const {
    const auto run = view.run<T>(head_lo_ + v.head, v.key, v.keys);
    return {run.row, run.stride, run.tokens - 1};
  }
  Ahead fetch(const Visit& v) const {
    const Keys<T> rows = keys_of(v.values ? v_ : k_, v);
    constexpr std::int64_t size = sizeof(T);
    return {reinterpret_cast<const char*>(rows.base), rows.stride * size, (v.values ? p_.dim_v : p_.dim_qk) * size};
  }

  void start(std::int64_t h) const {
    std::fill_n(o_of(h, 0), scratch_.padded_rows * scratch_.dim_v, 0.0f);
    if (checked_) std::fill_n(lost_of(h, 0), scratch_.padded_rows * scratch_.dim_v, 0.0f);
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

  // To fp32, padded with zeros to whole vectors.
  template <class S>
  void copy_row(const S* from, std::int64_t dim, float scale, float* to) const {
    for (std::int64_t d = 0; d < dim; d += kLanes) {
      const VF x = d + kLanes <= dim ? load(DF(), from + d) : load_n(DF(), from + d, dim - d);
      hn::Store(x * splat(scale), DF(), to + d);
    }
  }
  Keys<float> pack(const KeyValueView& view, std::int64_t dim, std::int64_t stride, const Visit& v) const {
    view.each_run<T>(head_lo_ + v.head, v.key, v.keys, [&](const auto& run, std::int64_t done) {
      for (std::int64_t key = 0; key < run.tokens; ++key) {
        float* const to = scratch_.packed + (done + key) * stride;
        copy_row(run.row + key * run.stride, dim, view.factor(head_lo_ + v.head, v.key + done + key), to);
        for (std::int64_t d = 0; view.centered() && d < dim; ++d) to[d] += view.mean(head_lo_ + v.head, d);
      }
    });
    return {scratch_.packed, stride, v.keys - 1};
  }
  // f with the tile as it lies in memory, or with a copy.
  template <class F>
  void with_rows(bool copy, const KeyValueView& view, std::int64_t dim, std::int64_t stride, const Visit& v,
                 F f) const {
    const Keys<T> rows = keys_of(view, v);
    copy || rows.last + 1 < v.keys ? f(pack(view, dim, stride, v)) : f(rows);
  }

  void scores(const Visit& v, const Ahead& ahead) const {
    with_rows(copy_k_, k_, p_.dim_qk, scratch_.dim_qk, v, [&](const auto& k) HWY_ATTR {
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        scores_of_group<size()>(v, first, k, first == 0 ? ahead : Ahead());  // the other groups find K in L1
      });
    });
  }
  template <int R, class S>
  void scores_of_group(const Visit& v, std::int64_t first, const Keys<S>& k, const Ahead& ahead) const {
    scores_tile<R>(q_of(v.head, first), scratch_.dim_qk, k, whole<R>(v.keys), vectors(p_.dim_qk),
                   scores_of(v.head, first) + (v.key - v.chunk) * R, ahead);
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
      float* const visible = checked_ ? visible_of(v.head, first) : nullptr;
      for (std::int64_t i = 0; visible && i < whole<R>(v.count) * R; i += kLanes)
        hn::Store(hn::IfThenZeroElse(hn::Eq(hn::Load(DF(), s + i), Arith<VF>::neg_inf()), splat(1.0f)), DF(),
                  visible + i);
      softmax_tile<R>(s, whole<R>(v.count), m_of(v.head, first), l_of(v.head, first), alpha_of(v.head, first), phi);
      if (p_.dropout_p > 0) chunk_scores().template drop<R>(rows, {v.chunk, static_cast<int>(v.count), 0}, s, visible);
    });
  }

  void accumulate(const Visit& v, const Ahead& ahead) const {
    static constexpr float kKeep[4] = {1, 1, 1, 1};
    with_rows(copy_v_, v_, p_.dim_v, scratch_.dim_v, v, [&](const auto& rows) HWY_ATTR {
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        constexpr int R = size();
        const std::int64_t at = (v.key - v.chunk) * R, columns = vectors(p_.dim_v);
        const float *const weights = scores_of(v.head, first) + at, *const alpha = v.key == v.chunk
                                                                                       ? alpha_of(v.head, first)
                                                                                       : kKeep;
        float* const o = o_of(v.head, first);
        if (checked_ && any_hidden(visible_of(v.head, first) + at, v.keys * R))
          accumulate_checked<R, 2>(weights, visible_of(v.head, first) + at, alpha, rows, v.keys, 0, columns, o,
                                   lost_of(v.head, first), scratch_.dim_v);
        else
          accumulate_tile<R, kColumns<T>>(weights, alpha, rows, v.keys, 0, columns, o, scratch_.dim_v,
                                          first == 0 ? ahead : Ahead());
      });
    });
  }

  // Where every row sees every key, each product is a visible pair's, and its NaN or infinity belongs in O.
  static HWY_NOINLINE bool any_hidden(const float* visible, std::int64_t count) {
    return std::find(visible, visible + count, 0.0f) != visible + count;
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
  void epilogue(std::int64_t h) const {
    each_group([&](auto size, std::int64_t first) {
      constexpr int R = size();
      join_sums<R>(h, first);
      const std::int64_t rows = std::min<std::int64_t>(R, rows_ - first);
      for (std::int64_t i = 0; checked_ && i < rows * scratch_.dim_v; ++i) o_of(h, first)[i] += lost_of(h, first)[i];
      DecodeRow row[R];
      describe<R>(h, first, row);
      for (std::int64_t r = 0; r < rows; ++r)
        if (!p_.unified_max || left(h, first + r) != 0)
          put(h, first + r, row[r], {m_of(h, first)[r], l_of(h, first)[r]});
    });
  }
  // Those rows whose largest score of these keys is near enough to phi, or that see none; false if there are others.
  // Rows that are not finite are not served either, nor are rows where weights below 1 leave too little of a small V.
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

  // Returns true if underflow is far: numbers below 2^-126 become 0, and 2^22 of them are 2^-24 of 2^-80.
  static bool stands(const float* x, std::int64_t count) {
    VF most = hn::Zero(DF());
    for (std::int64_t i = 0; i < count; i += kLanes) most = hn::Max(most, hn::Abs(hn::Load(DF(), x + i)));
    return hn::GetLane(hn::MaxOfLanes(DF(), most)) >= static_cast<float>(onepass::kLeastWeight);
  }

  static bool fills_vectors(std::int64_t dim) { return dim % kLanes == 0; }
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
  KeyValueView k_, v_;
  BandMask band_;
  std::int64_t batch_ = 0, head_lo_ = 0, heads_ = 0, split_ = 0, rows_ = 0;
  Range keys_, unmasked_;
  bool copy_k_ = false, copy_v_ = false, features_ = false, checked_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
