// The register tiles of the few-row kernels: R rows (1, 2 or 4) against keys. Lanes of a vector are head dims in the
// dot products and in O, and (key, row) pairs, row fastest, in the scores between them.
//
//   scores   kLanes accumulators = kLanes / R keys x R rows, turned into one vector by a transposing sum
//   weights  vertical maximum and sum; the keys of a row are joined by log2(kLanes / R) shuffles, once a chunk
//   values   R rows x C vectors of dims, the weights broadcast
#if defined(ONEPASS_CPU_DECODE_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_TILE_INL_H
#undef ONEPASS_CPU_DECODE_TILE_INL_H
#else
#define ONEPASS_CPU_DECODE_TILE_INL_H
#endif

#include <algorithm>

#include <hwy/cache_control.h>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// How a stored row becomes fp32 vectors: kVectors at a time. bf16 gives its even elements, then its odd ones, since one
// shift and one mask turn a vector of 16-bit pairs into two of fp32; q and O are kept in the same order.
template <class T>
struct Stored {
  static constexpr int kVectors = 1, kElements = kLanes;
  static HWY_INLINE void load(const T* p, VF* x) { x[0] = HWY_NAMESPACE::load(DF(), p); }
};
template <>
struct Stored<bf16> {
  static constexpr int kVectors = 2, kElements = 2 * kLanes;
  static HWY_INLINE void load(const bf16* p, VF* x) {
    const auto pairs = hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(p));
    x[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(pairs));
    x[1] = hn::BitCast(DF(), pairs & hn::Set(DU(), 0xffff0000u));
  }
};

// The keys of a chunk in K or V. Beyond the last, the last again: never past the end of the tensor.
template <class T>
struct Keys {
  const T* base;
  std::int64_t stride, last;
  HWY_INLINE const T* at(std::int64_t key) const { return base + std::min(key, last) * stride; }
};

// Fetches rows of what is read next, a part of a row at a time.
struct Ahead {
  const char* base = nullptr;
  std::int64_t stride = 0, bytes = 0;  // of a row
  HWY_INLINE void fetch(std::int64_t row, std::int64_t from, std::int64_t to) const {
    for (std::int64_t at = from; at < to; at += 64) hwy::Prefetch(base + row * stride + at);
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

// scores[key][R] = q . k for `keys` keys, a multiple of kLanes / R. q: [R][q_stride] in the order of Stored<T>.
template <int R, class T>
HWY_INLINE void dot_keys(const float* HWY_RESTRICT q, std::int64_t q_stride, const Keys<T>& k, int keys,
                         std::int64_t dim, float* HWY_RESTRICT scores, const Ahead& ahead) {
  using S = Stored<T>;
  constexpr int kStep = kLanes / R;
  for (int from = 0; from < keys; from += kStep) {
    const T* row[kStep];
    for (int i = 0; i < kStep; ++i) row[i] = k.at(from + i);
    if (ahead.base) {
      for (int i = 0; i < kStep; ++i) ahead.fetch(from + i, 0, ahead.bytes);
    }
    VF sum[kLanes];
    HWY_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) sum[i] = hn::Zero(DF());
    HWY_UNROLL(1)
    for (std::int64_t d = 0; d < dim; d += S::kElements) {
      VF x[S::kVectors], y[R][S::kVectors];
      HWY_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        HWY_UNROLL(2)
        for (int c = 0; c < S::kVectors; ++c) y[r][c] = hn::Load(DF(), q + r * q_stride + d + c * kLanes);
      }
      HWY_UNROLL(16)
      for (int i = 0; i < kStep; ++i) {
        S::load(row[i] + d, x);
        HWY_UNROLL(4)
        for (int r = 0; r < R; ++r) {
          HWY_UNROLL(2)
          for (int c = 0; c < S::kVectors; ++c) sum[i * R + r] = hn::MulAdd(x[c], y[r][c], sum[i * R + r]);
        }
      }
    }
    hn::Store(transpose_sum(sum), DF(), scores + from * R);
  }
}

// The online-softmax step of a chunk: scores become weights, (m, l) move on, alpha[R] is what O is to be multiplied by.
// m is the same in all lanes of a row; l is a sum per lane until over_keys joins it at the end.
template <int R>
HWY_INLINE void weigh_keys(float* HWY_RESTRICT scores, int keys, float* HWY_RESTRICT m, float* HWY_RESTRICT l,
                           float* HWY_RESTRICT alpha) {
  const DF d;
  VF top = hn::Load(d, scores);
  for (int i = kLanes; i < keys * R; i += kLanes) top = hn::Max(top, hn::Load(d, scores + i));
  top = over_keys<R>(top, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
  RowState<VF> state{hn::Load(d, m), hn::Load(d, l)};
  const Rescale<VF> step = advance<Reference::integer>(state, top);
  VF sum = hn::Zero(d);
  for (int i = 0; i < keys * R; i += kLanes) {
    const VF w = weight(hn::Load(d, scores + i), step);
    sum = sum + w;
    hn::Store(w, d, scores + i);
  }
  absorb(state, sum);
  hn::Store(state.m, d, m);
  hn::Store(state.l, d, l);
  hn::Store(step.alpha, d, alpha);
}

// o[R][from, from + C vectors) = o * alpha + sum over keys of weight * v
template <int R, int C, class T>
HWY_INLINE void add_columns(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT alpha, const T* HWY_RESTRICT v,
                            std::int64_t v_stride, int keys, float* HWY_RESTRICT o, std::int64_t o_stride,
                            const Ahead& ahead, std::int64_t ahead_from, std::int64_t ahead_to) {
  using S = Stored<T>;
  VF sum[R][C];
  HWY_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) sum[r][c] = hn::Zero(DF());
  }
  HWY_UNROLL(1)
  for (int key = 0; key < keys; ++key) {
    if (ahead.base) ahead.fetch(key, ahead_from, ahead_to);
    VF x[C];
    HWY_UNROLL(8)
    for (int c = 0; c < C; c += S::kVectors) S::load(v + key * v_stride + c * kLanes, x + c);
    HWY_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const VF w = splat(weights[key * R + r]);
      HWY_UNROLL(8)
      for (int c = 0; c < C; ++c) sum[r][c] = hn::MulAdd(w, x[c], sum[r][c]);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      float* at = o + r * o_stride + c * kLanes;
      hn::Store(hn::MulAdd(hn::Load(DF(), at), splat(alpha[r]), sum[r][c]), DF(), at);
    }
  }
}

// All columns of O, C vectors at a time, then C / 2, ...
template <int R, int C, class T>
HWY_INLINE void add_values(const float* weights, const float* alpha, const T* v, std::int64_t v_stride, int keys,
                           std::int64_t dim, float* o, std::int64_t o_stride, const Ahead& ahead) {
  std::int64_t d = 0;
  for (; d + C * kLanes <= dim; d += C * kLanes) {
    add_columns<R, C>(weights, alpha, v + d, v_stride, keys, o + d, o_stride, ahead, ahead.bytes * d / dim,
                      ahead.bytes * (d + C * kLanes) / dim);
  }
  if constexpr (C > Stored<T>::kVectors) {
    if (d < dim) {
      const Ahead rest = d == 0 ? ahead : Ahead();
      add_values<R, C / 2>(weights, alpha, v + d, v_stride, keys, dim - d, o + d, o_stride, rest);
    }
  }
}

// Vectors of O per row kept in registers: 16 (of 32) or 8 (of 16) accumulators.
template <int R>
inline constexpr int kColumns = kAvx512 || HWY_TARGET == HWY_NEON ? (R == 4 ? 4 : 8) : 8 / R;

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
