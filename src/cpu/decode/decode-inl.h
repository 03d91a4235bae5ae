// One task of the few-row kernel: one sequence, some K/V heads, one range of keys.
#if defined(ONEPASS_CPU_DECODE_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_DECODE_INL_H
#undef ONEPASS_CPU_DECODE_DECODE_INL_H
#else
#define ONEPASS_CPU_DECODE_DECODE_INL_H
#endif

#include <algorithm>

#include "cpu/decode/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// T: the storage type of k and v.
template <class T>
class Decode : DecodeRows {
  // fp8_e4m3 is converted once for all rows of a head: 8 instructions a vector.
  static constexpr bool kConvert = sizeof(T) == 1;

 public:
  Decode(const DecodeJob& job, std::int64_t task, int worker)
      : DecodeRows(job, task, worker),
        k_(onepass::keys_of(a_, seq_)),
        v_(values_of(a_, seq_)),
        copy_k_(!fills_vectors(p_.dim_qk)),
        copy_v_(!fills_vectors(p_.dim_v)) {}

  // With a unified maximum all of it by that; rows that it does not serve by their own maxima, as otherwise all.
  void run() const {
    if (p_.unified_max) {
      const float phi = *p_.unified_max;
      pass(&phi);
      bool served = true;
      for (std::int64_t h = 0; h < heads_; ++h) served = epilogue_served(h, phi) && served;
      if (served) return;
    }
    pass(nullptr);
    for (std::int64_t h = 0; h < heads_; ++h) epilogue(h);
  }

 private:
  // The whole algorithm: (m, l, O) of each head moves through the chunks.
  void pass(const float* phi) const {
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
      }
    }
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
    if constexpr (!kConvert) {
      const Keys<T> rows = keys_of(view, v);
      if (!copy && rows.last + 1 == v.keys) return f(rows);
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
  template <int R, class S>
  void scores_of_group(const Visit& v, std::int64_t first, const Keys<S>& k, const Ahead& ahead) const {
    scores_tile<R>(q_of(v.head, first), scratch_.dim_qk, k, whole<R>(v.keys), vectors(p_.dim_qk),
                   scores_of(v.head, first) + (v.key - v.chunk) * R, ahead);
  }

  void accumulate(const Visit& v, const Ahead& ahead) const {
    static constexpr float kKeep[4] = {1, 1, 1, 1};
    with_rows(copy_v_, v_, p_.dim_v, scratch_.dim_v, v, [&](const auto& rows) HWY_ATTR {
      each_group([&](auto size, std::int64_t first) HWY_ATTR {
        constexpr int R = size();
        accumulate_tile<R>(scores_of(v.head, first) + (v.key - v.chunk) * R,
                           v.key == v.chunk ? alpha_of(v.head, first) : kKeep, rows, v.keys, vectors(p_.dim_v),
                           o_of(v.head, first), scratch_.dim_v, first == 0 ? ahead : Ahead());
      });
    });
  }

  void epilogue(std::int64_t h) const {
    each_group([&](auto size, std::int64_t first) {
      constexpr int R = size();
      join_sums<R>(h, first);
      if (!finite(o_of(h, first), std::min<std::int64_t>(R, rows_ - first) * scratch_.dim_v)) recompute<R>(h, first);
      put_group<R>(h, first);
    });
  }
  template <int R>
  HWY_NOINLINE void recompute(std::int64_t h, std::int64_t first) const;  // fallback-inl.h

  static bool fills_vectors(std::int64_t dim) { return dim % kLanes == 0; }

  const KeyValueView k_, v_;
  const bool copy_k_, copy_v_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
