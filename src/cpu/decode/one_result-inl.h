// One result per row (common/one_result.hpp): the few-row kernel's steps with the sums of cpu.flash. Rows are computed
// one by one, [row][key], but for the products, where keys are lanes: a product is then a sum over dims in order.
#if defined(ONEPASS_CPU_DECODE_ONE_RESULT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_ONE_RESULT_INL_H
#undef ONEPASS_CPU_DECODE_ONE_RESULT_INL_H
#else
#define ONEPASS_CPU_DECODE_ONE_RESULT_INL_H
#endif

#include <algorithm>
#include <limits>

#include "cpu/common/one_result.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Lane j of vector i becomes lane i of vector j.
HWY_INLINE void transpose_square(VF (&x)[kLanes]) {
  using D64 = hn::Repartition<double, DF>;
  const DF d;
  HWY_UNROLL(4)
  for (int i = 0; i < kLanes; i += 4) {  // of each 128 bits
    const auto a = hn::BitCast(D64(), hn::InterleaveLower(d, x[i], x[i + 1]));
    const auto b = hn::BitCast(D64(), hn::InterleaveUpper(d, x[i], x[i + 1]));
    const auto c = hn::BitCast(D64(), hn::InterleaveLower(d, x[i + 2], x[i + 3]));
    const auto e = hn::BitCast(D64(), hn::InterleaveUpper(d, x[i + 2], x[i + 3]));
    x[i] = hn::BitCast(d, hn::InterleaveLower(D64(), a, c));
    x[i + 1] = hn::BitCast(d, hn::InterleaveUpper(D64(), a, c));
    x[i + 2] = hn::BitCast(d, hn::InterleaveLower(D64(), b, e));
    x[i + 3] = hn::BitCast(d, hn::InterleaveUpper(D64(), b, e));
  }
#if HWY_TARGET == HWY_AVX3
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const __m512 even0 = _mm512_shuffle_f32x4(x[i].raw, x[4 + i].raw, 0x88),
                 odd0 = _mm512_shuffle_f32x4(x[i].raw, x[4 + i].raw, 0xdd),
                 even1 = _mm512_shuffle_f32x4(x[8 + i].raw, x[12 + i].raw, 0x88),
                 odd1 = _mm512_shuffle_f32x4(x[8 + i].raw, x[12 + i].raw, 0xdd);
    x[i] = VF{_mm512_shuffle_f32x4(even0, even1, 0x88)};
    x[8 + i] = VF{_mm512_shuffle_f32x4(even0, even1, 0xdd)};
    x[4 + i] = VF{_mm512_shuffle_f32x4(odd0, odd1, 0x88)};
    x[12 + i] = VF{_mm512_shuffle_f32x4(odd0, odd1, 0xdd)};
  }
#elif HWY_TARGET == HWY_AVX2
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const VF low = hn::ConcatLowerLower(d, x[4 + i], x[i]);
    x[4 + i] = hn::ConcatUpperUpper(d, x[4 + i], x[i]);
    x[i] = low;
  }
#endif
}

// to[dim][width] = kLanes keys; dim: of whole vectors. Fetches kLanes rows from `fetched` on.
template <class T>
HWY_NOINLINE void transpose_keys(const Keys<T>& k, std::int64_t dim, float* HWY_RESTRICT to, std::int64_t width,
                                 const Ahead& ahead, std::int64_t fetched) {
  std::int64_t done = 0;
  HWY_UNROLL(1)
  for (std::int64_t d = 0; d < dim; d += kLanes) {
    for (; done * dim < (d + kLanes) * kLanes; ++done) ahead.fetch(fetched + done);
    VF x[kLanes];
    HWY_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) x[i] = load(DF(), k.at(i) + d);
    transpose_square(x);
    HWY_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) hn::Store(x[i], DF(), to + (d + i) * width);
  }
}

// scores[r][key] = q[r] . k for R rows and V vectors of keys.
template <int R, int V>
HWY_INLINE void products_block(const float* HWY_RESTRICT q, std::int64_t q_stride, const float* HWY_RESTRICT k,
                               std::int64_t width, std::int64_t dim, float* HWY_RESTRICT scores, std::int64_t stride) {
  VF sum[R][V];
  HWY_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(DF());
  }
  HWY_UNROLL(2)
  for (std::int64_t d = 0; d < dim; ++d) {
    HWY_UNROLL(4)
    for (int v = 0; v < V; ++v) {
      const VF x = hn::Load(DF(), k + d * width + v * kLanes);
      HWY_UNROLL(4)
      for (int r = 0; r < R; ++r) sum[r][v] = hn::MulAdd(splat(q[r * q_stride + d]), x, sum[r][v]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < V; ++v) hn::Store(sum[r][v], DF(), scores + r * stride + v * kLanes);
  }
}
template <int R>
HWY_NOINLINE void products_tile(const float* q, std::int64_t q_stride, const float* k, std::int64_t keys,
                                std::int64_t width, std::int64_t dim, float* scores, std::int64_t stride) {
  std::int64_t at = 0;
  for (; at + 2 * kLanes <= keys; at += 2 * kLanes)
    products_block<R, 2>(q, q_stride, k + at, width, dim, scores + at, stride);
  if (at < keys) products_block<R, 1>(q, q_stride, k + at, width, dim, scores + at, stride);
}

using FourSums = hn::FixedTag<float, kSumsOfKeys>;
inline float sum_of_four(hn::Vec<FourSums> sums) {
  HWY_ALIGN float sum[kSumsOfKeys];
  hn::Store(sums, FourSums(), sum);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// The online-softmax step of one row. Every lane of m, l, t and alpha holds the same. t: as in softmax_tile.
inline void softmax_row(float* scores, std::int64_t keys, float unit, float* m, float* l, float* t, float* alpha,
                        const float* phi) {
  const DF d;
  VF most = hn::Load(d, scores);
  for (std::int64_t i = kLanes; i < keys; i += kLanes) most = hn::Max(most, hn::Load(d, scores + i));
  most = over_keys<1>(most, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
  RowState<VF> state{hn::Load(d, m), hn::Load(d, l)};
  const VF factor = splat(unit);
  const Step<VF> step = phi ? refer_to(splat(*phi), factor) : advance(state, most, factor);
  if (phi) state.m = hn::Max(state.m, most);
  HWY_ALIGN float exponents[kBlockKeys];
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    const VF s = hn::Load(d, scores + i);
    if (t) hn::Store(exponent(s, factor, step), d, exponents + i);
    hn::Store(weight(s, factor, step), d, scores + i);
  }
  auto sums = hn::Zero(FourSums()), terms = sums;
  for (std::int64_t i = 0; i < keys; i += kSumsOfKeys) {
    const auto w = hn::Load(FourSums(), scores + i);
    sums = sums + w;
    if (t) terms = hn::MulAdd(w, hn::Load(FourSums(), exponents + i), terms);
  }
  if (t) {
    const VF before = moved_terms(hn::Load(d, t), state.l, hn::Load(d, m), factor, step);
    hn::Store(before + splat(sum_of_four(terms)), d, t);
  }
  absorb(state, splat(sum_of_four(sums)));
  hn::Store(state.m, d, m);
  hn::Store(state.l, d, l);
  hn::Store(step.alpha, d, alpha);
}

// The sum of a chunk's weights times values so far: [row][dim]. After the chunk's last tile O = O * alpha + sum.
struct ChunkSum {
  float *sum, *o;
  std::int64_t stride;
  const float* alpha;  // [row][kDecodeMaxLanes]
  bool first, last;    // tile of the chunk
};

template <int G, int C, class T>
HWY_INLINE void sum_block(const float* HWY_RESTRICT weights, std::int64_t stride, const Keys<T>& v, std::int64_t keys,
                          std::int64_t from, const ChunkSum& to, std::int64_t row, const Ahead& ahead) {
  VF sum[G][C];
  HWY_UNROLL(4)
  for (int r = 0; r < G; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c)
      sum[r][c] = to.first ? hn::Zero(DF()) : hn::Load(DF(), to.sum + (row + r) * to.stride + from + c * kLanes);
  }
  HWY_UNROLL(1)
  for (std::int64_t key = 0; key < keys; ++key) {
    ahead.fetch(key);
    VF w[G];
    HWY_UNROLL(4)
    for (int r = 0; r < G; ++r) w[r] = splat(weights[(row + r) * stride + key]);
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      const VF x = load(DF(), v.base + key * v.stride + from + c * kLanes);
      HWY_UNROLL(4)
      for (int r = 0; r < G; ++r) sum[r][c] = hn::MulAdd(w[r], x, sum[r][c]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < G; ++r) {
    const VF alpha = splat(to.alpha[(row + r) * kDecodeMaxLanes]);
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      const std::int64_t at = (row + r) * to.stride + from + c * kLanes;
      if (to.last)
        hn::Store(hn::MulAdd(hn::Load(DF(), to.o + at), alpha, sum[r][c]), DF(), to.o + at);
      else
        hn::Store(sum[r][c], DF(), to.sum + at);
    }
  }
}

// All columns [from, dim), as accumulate_tile goes through them. weights: [R][stride].
template <int R, int C, class T>
HWY_INLINE void sum_tile(const float* weights, std::int64_t stride, const Keys<T>& v, std::int64_t keys,
                         std::int64_t from, std::int64_t dim, const ChunkSum& to, const Ahead& ahead) {
  constexpr int G = std::min(R, std::max(1, kAccumulators / C));
  for (; from + C * kLanes <= dim; from += C * kLanes) {
    for (int r = 0; r < R; r += G)
      sum_block<G, C>(weights, stride, v, keys, from, to, r, from == 0 && r == 0 ? ahead : Ahead());
  }
  if constexpr (C > 1) {
    if (from < dim) sum_tile<R, C / 2>(weights, stride, v, keys, from, dim, to, ahead);
  }
}

template <int R>
HWY_NOINLINE void sum_tile(const float* weights, std::int64_t stride, const CopiedKeys& v, std::int64_t keys,
                           std::int64_t dim, const ChunkSum& to, const Ahead& ahead) {
  sum_tile<R, kColumns<float>, float>(weights, stride, v, keys, 0, dim, to, ahead);
}
template <int R, class T>
HWY_INLINE void sum_tile(const float* weights, std::int64_t stride, const Keys<T>& v, std::int64_t keys,
                         std::int64_t dim, const ChunkSum& to, const Ahead& ahead) {
  sum_tile<R, kColumns<T>, T>(weights, stride, v, keys, 0, dim, to, ahead);
}

// Values that are not finite leave a tile: zeros stand for them, and `lost` of the rows whose score is not hidden
// becomes NaN. visible: [rows][stride], 0 where a key is hidden.
inline void take_lost(float* values, std::int64_t value_stride, std::int64_t keys, std::int64_t dim,
                      const float* visible, std::int64_t stride, std::int64_t rows, float* lost,
                      std::int64_t lost_stride) {
  for (std::int64_t key = 0; key < keys; ++key) {
    float* const row = values + key * value_stride;
    for (std::int64_t d = 0; d < dim; ++d) {
      if (onepass::is_finite(row[d])) continue;
      row[d] = 0;
      for (std::int64_t r = 0; r < rows; ++r)
        if (visible[r * stride + key] != 0) lost[r * lost_stride + d] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
