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

#include "cpu/decode/one_result-inl.h"
#include "cpu/decode/rows-inl.h"
#include "cpu/decode/walk-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// T: the storage type of k and v.
template <class T>
class Decode : DecodeRows {
 public:
  Decode(const DecodeJob& job, std::int64_t task, int worker)
      : DecodeRows(job, task, worker), k_(onepass::keys_of(a_, seq_)), v_(values_of(a_, seq_)) {
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
  bool pass(const float* phi) const { return one_result_ ? pass<true>(phi) : pass<false>(phi); }
  template <bool kOneResult>
  bool pass(const float* phi) const {
    const std::int64_t check = kCheck * cut_.chunk;
    for (std::int64_t h = 0; h < heads_; ++h) start(h);
    Walk walk(cut_, keys_, heads_, tiles_), ahead(cut_, keys_, heads_, tiles_);
    Visit v, later;
    for (std::int64_t i = 0; i < cut_.lead; ++i) ahead.next(later);
    while (walk.next(v)) {
      const Ahead fetched = ahead.next(later) ? fetch(later) : Ahead();
      if (!v.values) {
        kOneResult ? scores_by_row(v, fetched) : scores(v, fetched);
      } else {
        if (v.key == v.chunk) kOneResult ? softmax_by_row(v, phi) : softmax(v, phi);
        kOneResult ? accumulate_by_row(v, fetched) : accumulate(v, fetched);
        const bool last = v.key + v.keys == v.chunk + v.count;
        if (last && !phi && !checked_ && ((v.chunk - keys_.lo) % check == 0 || v.chunk + v.count == keys_.hi) &&
            spoiled(v.head))
          return false;
      }
    }
    for (std::int64_t h = 0; tiles_.tiles && !phi && !checked_ && h < heads_; ++h)  // whose last chunk may be left out
      if (spoiled(h)) return false;
    return true;
  }
  static constexpr std::int64_t kCheck = 32;

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
    if (scratch_.t) std::fill_n(t_of(h, 0), scratch_.padded_rows * kDecodeMaxLanes, 0.0f);
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

  // ---- one result per row

  void scores_by_row(const Visit& v, const Ahead& ahead) const {
    const std::int64_t keys = whole<1>(v.keys), width = cut_.tile;
    for (Visit part = v; part.key < v.key + v.keys; part.key += kLanes) {
      const std::int64_t from = part.key - v.key;
      part.keys = std::min<std::int64_t>(kLanes, v.keys - from);
      with_rows(copy_k_, k_, p_.dim_qk, scratch_.dim_qk, part, [&](const auto& k) HWY_ATTR {
        transpose_keys(k, vectors(p_.dim_qk), scratch_.turned + from, width, ahead, from);
      });
    }
    each_group([&](auto size, std::int64_t first) HWY_ATTR {
      products_tile<size()>(q_of(v.head, first), scratch_.dim_qk, scratch_.turned, keys, width, p_.dim_qk,
                            scores_of(v.head, first) + (v.key - v.chunk), cut_.chunk);
    });
  }

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

  void accumulate_by_row(const Visit& v, const Ahead& ahead) const {
    const auto add = [&](const auto& values, const Visit& part, const Ahead& later) HWY_ATTR {
      using S = std::remove_cvref_t<decltype(*values.base)>;
      const std::int64_t at = part.key - v.chunk;
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        const ChunkSum to{scratch_.sums + (o_of(v.head, first) - scratch_.o),
                          o_of(v.head, first),
                          scratch_.dim_v,
                          alpha_of(v.head, first),
                          at == 0,
                          at + part.keys == v.count};
        sum_tile<size(), kColumns<S>>(scores_of(v.head, first) + at, cut_.chunk, values, part.keys, 0,
                                      vectors(p_.dim_v), to, first == 0 ? later : Ahead());
      });
    };
    if (checked_) {
      const Keys<float> copy = pack(v_, p_.dim_v, scratch_.dim_v, v);
      take_lost(scratch_.packed, scratch_.dim_v, v.keys, p_.dim_v, visible_of(v.head, 0) + v.key - v.chunk, cut_.chunk,
                rows_, lost_of(v.head, 0), scratch_.dim_v);
      return add(copy, v, Ahead());
    }
    constexpr std::int64_t kFewKeys = 8;  // fewer in a page are copied
    for (Visit part = v; part.key < v.key + v.keys; part.key += part.keys) {
      part.keys = v.key + v.keys - part.key;
      if (const std::int64_t run = keys_of(v_, part).last + 1; run >= kFewKeys) part.keys = run;
      with_rows(copy_v_, v_, p_.dim_v, scratch_.dim_v, part,
                [&](const auto& x) { add(x, part, part.key == v.key ? ahead : Ahead()); });
    }
  }

  // Where every row sees every key, each product is a visible pair's, and its NaN or infinity belongs in O.
  static HWY_NOINLINE bool any_hidden(const float* visible, std::int64_t count) {
    return std::find(visible, visible + count, 0.0f) != visible + count;
  }

  const KeyValueView k_, v_;
  bool copy_k_ = false, copy_v_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
