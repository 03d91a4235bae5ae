// One task of the few-row kernel: one sequence, some K/V heads, one range of keys.
#if defined(ONEPASS_CPU_DECODE_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_DECODE_INL_H
#undef ONEPASS_CPU_DECODE_DECODE_INL_H
#else
#define ONEPASS_CPU_DECODE_DECODE_INL_H
#endif

#include <algorithm>

#include "cpu/decode/steps-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// T: the storage type of k and v.
template <class T>
class Decode : DecodeSteps {
 public:
  Decode(const DecodeJob& job, std::int64_t task, int worker)
      : DecodeSteps(job, task, worker), k_(onepass::keys_of(a_, seq_)), v_(values_of(a_, seq_)) {
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

  CopiedKeys pack(const KeyValueView& view, std::int64_t dim, std::int64_t stride, const Visit& v) const {
    view.each_run<T>(head_lo_ + v.head, v.key, v.keys, [&](const auto& run, std::int64_t done) {
      for (std::int64_t key = 0; key < run.tokens; ++key) {
        float* const to = scratch_.packed + (done + key) * stride;
        copy_row(run.row + key * run.stride, dim, view.factor(head_lo_ + v.head, v.key + done + key), to);
        for (std::int64_t d = 0; view.centered() && d < dim; ++d) to[d] += view.mean(head_lo_ + v.head, d);
      }
    });
    return {{scratch_.packed, stride, v.keys - 1}};
  }
  // f with the tile as it lies in memory, or with a copy.
  template <class F>
  void with_rows(bool copy, const KeyValueView& view, std::int64_t dim, std::int64_t stride, const Visit& v,
                 F f) const {
    if constexpr (!kConvert) {
      if (const Keys<T> rows = keys_of(view, v); !copy && rows.last + 1 >= v.keys) return f(rows);
    }
    f(pack(view, dim, stride, v));
  }

  void scores(const Visit& v, const Ahead& ahead) const {
    with_rows(copy_k_, k_, p_.dim_qk, scratch_.dim_qk, v, [&](const auto& k) HWY_ATTR {
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        scores_of_group<size()>(v, first, k, first == 0 ? ahead : Ahead());  // the other groups find K in L1
      });
    });
  }
  template <int R, class Rows>
  void scores_of_group(const Visit& v, std::int64_t first, const Rows& k, const Ahead& ahead) const {
    scores_tile<R>(q_of(v.head, first), scratch_.dim_qk, k, whole<R>(v.keys), vectors(p_.dim_qk),
                   scores_of(v.head, first) + (v.key - v.chunk) * R, ahead);
  }

  void accumulate(const Visit& v, const Ahead& ahead) const {
    with_rows(copy_v_, v_, p_.dim_v, scratch_.dim_v, v, [&](const auto& rows) HWY_ATTR {
      each_group([&](auto size, std::int64_t first)
                     HWY_ATTR { accumulate_group<size()>(v, first, rows, first == 0 ? ahead : Ahead()); });
    });
  }
  // A function of its own: inside of pass its sums have too few registers (5 % of a call with 256 keys).
  template <int R, class Rows>
  HWY_NOINLINE void accumulate_group(const Visit& v, std::int64_t first, const Rows& rows, Ahead ahead) const {
    static constexpr float kKeep[4] = {1, 1, 1, 1};
    const std::int64_t at = (v.key - v.chunk) * R, columns = vectors(p_.dim_v);
    const float* const weights = scores_of(v.head, first) + at;
    const float* const alpha = v.key == v.chunk ? alpha_of(v.head, first) : kKeep;
    float* const o = o_of(v.head, first);
    if (checked_ && any_hidden(visible_of(v.head, first) + at, v.keys * R))
      accumulate_checked<R, 2>(weights, visible_of(v.head, first) + at, alpha, rows, v.keys, 0, columns, o,
                               lost_of(v.head, first), scratch_.dim_v);
    else
      accumulate_tile<R>(weights, alpha, rows, v.keys, columns, o, scratch_.dim_v, ahead);
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

  void accumulate_by_row(const Visit& v, const Ahead& ahead) const {
    const auto add = [&](const auto& values, const Visit& part, const Ahead& later) HWY_ATTR {
      const std::int64_t at = part.key - v.chunk;
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        const ChunkSum to{scratch_.sums + (o_of(v.head, first) - scratch_.o),
                          o_of(v.head, first),
                          scratch_.dim_v,
                          alpha_of(v.head, first),
                          at == 0,
                          at + part.keys == v.count};
        sum_tile<size()>(scores_of(v.head, first) + at, cut_.chunk, values, part.keys, vectors(p_.dim_v), to,
                         first == 0 ? later : Ahead());
      });
    };
    if (checked_) {
      const CopiedKeys copy = pack(v_, p_.dim_v, scratch_.dim_v, v);
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

  static constexpr bool kConvert = sizeof(T) == 1;  // once for all rows of a head: 8 instructions a vector

  const KeyValueView k_, v_;
  bool copy_k_ = false, copy_v_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
