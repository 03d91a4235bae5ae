// The register tiles of the few-row kernels: R rows (1, 2 or 4) against keys. Lanes of a vector are head dims in the
// dot products and in O, and (key, row) pairs, row fastest, in the scores between them.
//
//   scores      kLanes sums = kLanes / R keys x R rows, turned into one vector by a transposing sum
//   softmax     vertical maximum and sum; the keys of a row are joined by log2(kLanes / R) shuffles, once a chunk
//   accumulate  2 rows x 8 vectors of dims (of 32 registers), the weights broadcast
#if defined(ONEPASS_CPU_DECODE_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_TILE_INL_H
#undef ONEPASS_CPU_DECODE_TILE_INL_H
#else
#define ONEPASS_CPU_DECODE_TILE_INL_H
#endif

#include <algorithm>

#include <hwy/cache_control.h>

#include "cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Accumulators among the 32 or 16 registers.
inline constexpr int kAccumulators = kAvx512 || HWY_TARGET == HWY_NEON ? 16 : 8;
// Vectors of a row of V at once.
template <class T>
inline constexpr int kColumns = sizeof(T) == 4 ? kAccumulators / 2 : kAccumulators / 4;

// The keys of a chunk in K or V. Beyond the last, the last again: never past the end of the tensor.
template <class T>
struct Keys {
  const T* base;
  std::int64_t stride, last;
  HWY_INLINE const T* at(std::int64_t key) const { return base + std::min(key, last) * stride; }
};

// Rows that were copied. Their tiles are functions of their own, compiled once for all types that are copied.
struct CopiedKeys : Keys<float> {};

// Fetches a row of what is read later, while a row of this tile is read.
struct Ahead {
  const char* base = nullptr;
  std::int64_t stride = 0, bytes = 0;  // of a row
  HWY_INLINE void fetch(std::int64_t row) const {
    if (base == nullptr) return;
    for (std::int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(base + row * stride + at);
  }
};

// Lane i of the result is the sum of the lanes of a[i].
HWY_INLINE VF transpose_sum(const VF* a) {
  using D64 = hn::Repartition<double, DF>;
  const DF d;
  VF quad[kLanes / 4];  // per block of 128 bits: four sums
  for (int i = 0; i < kLanes / 4; ++i) {
    const VF* x = a + 4 * i;
    const auto ab = hn::BitCast(D64(), hn::InterleaveLower(d, x[0], x[1]) + hn::InterleaveUpper(d, x[0], x[1]));
    const auto cd = hn::BitCast(D64(), hn::InterleaveLower(d, x[2], x[3]) + hn::InterleaveUpper(d, x[2], x[3]));
    quad[i] = hn::BitCast(d, hn::InterleaveLower(D64(), ab, cd)) + hn::BitCast(d, hn::InterleaveUpper(D64(), ab, cd));
  }
#if HWY_TARGET == HWY_AVX3
  const VF even = hn::ConcatLowerLower(d, quad[2], quad[0]) + hn::ConcatUpperUpper(d, quad[2], quad[0]);
  const VF odd = hn::ConcatLowerLower(d, quad[3], quad[1]) + hn::ConcatUpperUpper(d, quad[3], quad[1]);
  return hn::OddEvenBlocks(odd, even) + hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd));
#elif HWY_TARGET == HWY_AVX2
  return hn::ConcatLowerLower(d, quad[1], quad[0]) + hn::ConcatUpperUpper(d, quad[1], quad[0]);
#else
  return quad[0];
#endif
}

// Joins the lanes of each row (lane % R) by `op`; every lane of a row gets the result.
template <int R, class Op>
HWY_INLINE VF over_keys(VF x, Op op) {
  if constexpr (R <= 1) x = op(x, hn::Shuffle2301(x));
  if constexpr (R <= 2) x = op(x, hn::Shuffle1032(x));
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  x = op(x, hn::SwapAdjacentBlocks(x));
#endif
#if HWY_TARGET == HWY_AVX3
  x = op(x, hn::ConcatLowerUpper(DF(), x, x));
#endif
  return x;
}

// scores[key][R] = q . k for `keys` keys, a multiple of kLanes / R. q: [R][q_stride].
// Key by key, in the order of memory: four keys side by side need half the loads of q, but hardware prefetchers then
// see four streams and DRAM gives a fifth less.
template <int R, class T>
HWY_INLINE void scores_tile(const float* HWY_RESTRICT q, std::int64_t q_stride, const Keys<T>& k, std::int64_t keys,
                            std::int64_t dim, float* HWY_RESTRICT scores, const Ahead& ahead) {
  constexpr int kStep = kLanes / R;
  for (std::int64_t from = 0; from < keys; from += kStep) {
    VF sum[kLanes];
    HWY_UNROLL(16)
    for (int i = 0; i < kStep; ++i) {
      const T* row = k.at(from + i);
      ahead.fetch(from + i);
      VF* one = sum + i * R;
      for (int r = 0; r < R; ++r) one[r] = hn::Zero(DF());
      HWY_UNROLL(1)
      for (std::int64_t d = 0; d < dim; d += kLanes) {
        const VF x = load(DF(), row + d);
        HWY_UNROLL(4)
        for (int r = 0; r < R; ++r) one[r] = hn::MulAdd(x, hn::Load(DF(), q + r * q_stride + d), one[r]);
      }
    }
    hn::Store(transpose_sum(sum), DF(), scores + from * R);
  }
}

template <int R>
HWY_NOINLINE void scores_tile(const float* q, std::int64_t q_stride, const CopiedKeys& k, std::int64_t keys,
                              std::int64_t dim, float* scores, const Ahead& ahead) {
  scores_tile<R, float>(q, q_stride, k, keys, dim, scores, ahead);
}

// The online-softmax step of a chunk: scores become weights, (m, l) move on, alpha[R] is what O is to be multiplied by.
// m is the same in all lanes of a row; l and t are sums per lane until over_keys joins them at the end. With a phi
// weights refer to that: alpha is 1, and m is kept to be looked at. t: as algebra/entropy.hpp has it, or null.
template <int R>
HWY_INLINE void softmax_tile(float* HWY_RESTRICT scores, std::int64_t keys, float* HWY_RESTRICT m,
                             float* HWY_RESTRICT l, float* HWY_RESTRICT t, float* HWY_RESTRICT alpha,
                             const float* phi) {
  const DF d;
  VF tile_max = hn::Load(d, scores);
  for (std::int64_t i = kLanes; i < keys * R; i += kLanes) tile_max = hn::Max(tile_max, hn::Load(d, scores + i));
  tile_max = over_keys<R>(tile_max, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
  RowState<VF> state{hn::Load(d, m), hn::Load(d, l)};
  const VF factor = splat(static_cast<float>(kLog2e));
  // One expression: a Step without values is a constructor that g++ instantiates behind the instruction set's pragma.
  const Step<VF> step = phi ? refer_to(splat(*phi), factor) : advance(state, tile_max, factor);
  if (phi) state.m = hn::Max(state.m, tile_max);
  VF sum = hn::Zero(d), terms = t ? moved_terms(hn::Load(d, t), state.l, hn::Load(d, m), factor, step) : sum;
  for (std::int64_t i = 0; i < keys * R; i += kLanes) {
    const VF s = hn::Load(d, scores + i), w = weight(s, factor, step);
    sum = sum + w;
    if (t) terms = hn::MulAdd(w, exponent(s, factor, step), terms);
    hn::Store(w, d, scores + i);
  }
  if (t) hn::Store(terms, d, t);
  absorb(state, sum);
  hn::Store(state.m, d, m);
  hn::Store(state.l, d, l);
  hn::Store(step.alpha, d, alpha);
}

// o[G][C vectors] = o * alpha + sum over keys of weight * v, for G of the R rows.
template <int R, int G, int C, class T>
HWY_INLINE void accumulate_block(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT alpha, const Keys<T>& v,
                                 std::int64_t keys, std::int64_t from, float* HWY_RESTRICT o, std::int64_t o_stride,
                                 const Ahead& ahead) {
  VF sum[G][C];
  HWY_UNROLL(4)
  for (int r = 0; r < G; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) sum[r][c] = hn::Zero(DF());
  }
  HWY_UNROLL(1)
  for (std::int64_t key = 0; key < keys; ++key) {
    ahead.fetch(key);
    VF w[G];
    HWY_UNROLL(4)
    for (int r = 0; r < G; ++r) w[r] = splat(weights[key * R + r]);
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      const VF x = load(DF(), v.base + key * v.stride + from + c * kLanes);
      HWY_UNROLL(4)
      for (int r = 0; r < G; ++r) sum[r][c] = hn::MulAdd(w[r], x, sum[r][c]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < G; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      float* at = o + r * o_stride + from + c * kLanes;
      hn::Store(hn::MulAdd(hn::Load(DF(), at), splat(alpha[r]), sum[r][c]), DF(), at);
    }
  }
}

// All columns [from, dim) of O, C vectors at a time, then C / 2, ...; G rows at a time, so that a row of V is read from
// end to end: 512 bytes at once where DRAM is asked, and from L1 for the rows that come after.
template <int R, int C, class T>
HWY_INLINE void accumulate_tile(const float* weights, const float* alpha, const Keys<T>& v, std::int64_t keys,
                                std::int64_t from, std::int64_t dim, float* o, std::int64_t o_stride,
                                const Ahead& ahead) {
  constexpr int G = std::min(R, std::max(1, kAccumulators / C));
  for (; from + C * kLanes <= dim; from += C * kLanes) {
    for (int r = 0; r < R; r += G) {
      const bool first = from == 0 && r == 0;
      accumulate_block<R, G, C>(weights + r, alpha + r, v, keys, from, o + r * o_stride, o_stride,
                                first ? ahead : Ahead());
    }
  }
  if constexpr (C > 1) {
    if (from < dim) accumulate_tile<R, C / 2>(weights, alpha, v, keys, from, dim, o, o_stride, ahead);
  }
}

template <int R>
HWY_NOINLINE void accumulate_tile(const float* weights, const float* alpha, const CopiedKeys& v, std::int64_t keys,
                                  std::int64_t dim, float* o, std::int64_t o_stride, const Ahead& ahead) {
  accumulate_tile<R, kColumns<float>, float>(weights, alpha, v, keys, 0, dim, o, o_stride, ahead);
}
template <int R, class T>
HWY_INLINE void accumulate_tile(const float* weights, const float* alpha, const Keys<T>& v, std::int64_t keys,
                                std::int64_t dim, float* o, std::int64_t o_stride, const Ahead& ahead) {
  accumulate_tile<R, kColumns<T>, T>(weights, alpha, v, keys, 0, dim, o, o_stride, ahead);
}

// accumulate_tile where values may not be finite: they stay out of the sums, in which a hidden key's weight of 0 would
// make NaN of them, and are added to `lost` of the rows that see their keys. visible[key][R]: 1, 0, or -1 where dropout
// multiplies with 0. The finite columns have the bits of accumulate_tile.
template <int R, int C, class T>
HWY_NOINLINE void accumulate_checked(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT visible,
                                     const float* HWY_RESTRICT alpha, const Keys<T>& v, std::int64_t keys,
                                     std::int64_t from, std::int64_t dim, float* HWY_RESTRICT o,
                                     float* HWY_RESTRICT lost, std::int64_t stride) {
  for (; from + C * kLanes <= dim; from += C * kLanes) {
    VF sum[R][C];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sum[r][c] = hn::Zero(DF());
    for (std::int64_t key = 0; key < keys; ++key) {
      VF x[C];
      VF probe = hn::Zero(DF());
      for (int c = 0; c < C; ++c) {
        x[c] = load(DF(), v.base + key * v.stride + from + c * kLanes);
        probe = probe_finite(probe, x[c]);
      }
      if (!all_zero(probe)) {
        for (int c = 0; c < C; ++c) {
          const auto finite = hn::IsFinite(x[c]);
          const VF rest = hn::IfThenZeroElse(finite, x[c]);
          x[c] = hn::IfThenElseZero(finite, x[c]);
          for (int r = 0; r < R; ++r) {
            const float seen = visible[key * R + r];
            float* const at = lost + r * stride + from + c * kLanes;
            if (seen != 0) hn::Store(hn::Load(DF(), at) + (seen > 0 ? rest : rest * hn::Zero(DF())), DF(), at);
          }
        }
        VF largest = hn::Zero(DF());
        for (int c = 0; c < C; ++c) largest = hn::Max(largest, hn::Abs(x[c]));
        if (all_zero(largest)) continue;
      }
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = hn::MulAdd(splat(weights[key * R + r]), x[c], sum[r][c]);
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        float* const at = o + r * stride + from + c * kLanes;
        hn::Store(hn::MulAdd(hn::Load(DF(), at), splat(alpha[r]), sum[r][c]), DF(), at);
      }
    }
  }
  if constexpr (C > 1) {
    if (from < dim) accumulate_checked<R, 1>(weights, visible, alpha, v, keys, from, dim, o, lost, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
