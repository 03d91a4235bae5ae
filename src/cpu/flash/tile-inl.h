// The two register tiles, of which 95 % of the time is made: rows of the accumulator tile are keys (scores) or columns
// of V (accumulate), lanes are queries. The second operand is broadcast from memory, element by element. The backward
// pass makes its five products of them (src/cpu/backward).
#if defined(ONEPASS_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_TILE_INL_H
#undef ONEPASS_CPU_TILE_INL_H
#else
#define ONEPASS_CPU_TILE_INL_H
#endif

#include <array>
#include <cstddef>
#include <utility>

#include "cpu/common/one_result.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/flash/flash.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Accumulators + one vector per row vector + the broadcast must fit the registers: 32 on AVX-512 and NEON, 16 on AVX2
// and SSE4 (whose two-operand multiply wants one more).
#if HWY_TARGET == HWY_AVX3
inline constexpr flash::Geometry kGeometry = {kLanes, 4, 6, 6, 96, 4};  // 24 + 4 + 1, 10 loads for 24 FMAs
#elif HWY_TARGET == HWY_AVX2
inline constexpr flash::Geometry kGeometry = {kLanes, 3, 4, 4, 96, 8};  // 12 + 3 + 1
#elif HWY_TARGET == HWY_NEON
inline constexpr flash::Geometry kGeometry = {kLanes, 6, 4, 4, 96, 8};  // 24 + 6 + 1
#else
inline constexpr flash::Geometry kGeometry = {kLanes, 2, 4, 4, 96, 16};  // 8 + 2 + 2
#endif
// Every loop over the accumulators: one that is left rolled puts them on the stack (g++ 12: 7 % of S at d = 64).
#undef ONEPASS_UNROLL
#define ONEPASS_UNROLL _Pragma("GCC unroll 8")

inline constexpr int kVecs = kGeometry.vecs, kPanel = kGeometry.lanes * kGeometry.vecs;
inline constexpr int kFlagKeys = 32, kFlagWords = kGeometry.flag_words();  // nonfinite-inl.h
static_assert(kGeometry.block == kBlockKeys);
inline constexpr int kTileKeys = kGeometry.keys, kTileDims = kGeometry.dims, kBlock = kGeometry.block;

// The end of a tile of S: it is stored and tile_max = max(tile_max, S), or it is added to what is there.
enum class End { store, add };

// S[n][:] = sum_d k[n][d] * q[d][:] for `keys` keys and `vecs` vectors of rows. Panels are kPanel wide.
template <End end, int vecs, int keys>
HWY_NOINLINE void scores_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, std::ptrdiff_t k_stride,
                              std::int64_t dim, float* HWY_RESTRICT s, [[maybe_unused]] float* HWY_RESTRICT tile_max) {
  VF acc[keys][vecs];
  ONEPASS_UNROLL
  for (int n = 0; n < keys; ++n) {
    ONEPASS_UNROLL
    for (int r = 0; r < vecs; ++r) acc[n][r] = hn::Zero(DF());
  }
#pragma GCC unroll 2
  for (std::int64_t d = 0; d < dim; ++d) {
    VF a[vecs];
    ONEPASS_UNROLL
    for (int r = 0; r < vecs; ++r) a[r] = hn::Load(DF(), q + d * kPanel + r * kLanes);
    ONEPASS_UNROLL
    for (int n = 0; n < keys; ++n) {
      const VF b = hn::Set(DF(), k[n * k_stride + d]);
      ONEPASS_UNROLL
      for (int r = 0; r < vecs; ++r) acc[n][r] = hn::MulAdd(a[r], b, acc[n][r]);
    }
  }
  if constexpr (end == End::add) {
    ONEPASS_UNROLL
    for (int n = 0; n < keys; ++n) {
      ONEPASS_UNROLL
      for (int r = 0; r < vecs; ++r) {
        float* at = s + n * kPanel + r * kLanes;
        hn::Store(hn::Load(DF(), at) + acc[n][r], DF(), at);
      }
    }
    return;
  }
  ONEPASS_UNROLL
  for (int r = 0; r < vecs; ++r) {
    VF m = hn::Load(DF(), tile_max + r * kLanes);
    ONEPASS_UNROLL
    for (int n = 0; n < keys; ++n) {
      m = hn::Max(m, acc[n][r]);
      hn::Store(acc[n][r], DF(), s + n * kPanel + r * kLanes);
    }
    hn::Store(m, DF(), tile_max + r * kLanes);
  }
}

// O[n][:] = alpha * O[n][:] + sum_k v[k][n] * p[k][:] for `dims` columns of V. Fresh accumulators and one addition per
// block, instead of starting from O, halve the error (CPU attention accumulates 4096 terms as 43 sums of 96).
template <int vecs, int dims>
HWY_NOINLINE void accumulate_tile(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, std::ptrdiff_t v_stride,
                                  std::int64_t keys, float* HWY_RESTRICT o, const float* HWY_RESTRICT alpha) {
  VF acc[dims][vecs];
  ONEPASS_UNROLL
  for (int n = 0; n < dims; ++n) {
    ONEPASS_UNROLL
    for (int r = 0; r < vecs; ++r) acc[n][r] = hn::Zero(DF());
  }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < keys; ++k) {
    VF a[vecs];
    ONEPASS_UNROLL
    for (int r = 0; r < vecs; ++r) a[r] = hn::Load(DF(), p + k * kPanel + r * kLanes);
    ONEPASS_UNROLL
    for (int n = 0; n < dims; ++n) {
      const VF b = hn::Set(DF(), v[k * v_stride + n]);
      ONEPASS_UNROLL
      for (int r = 0; r < vecs; ++r) acc[n][r] = hn::MulAdd(a[r], b, acc[n][r]);
    }
  }
  ONEPASS_UNROLL
  for (int r = 0; r < vecs; ++r) {
    const VF scale = hn::Load(DF(), alpha + r * kLanes);
    ONEPASS_UNROLL
    for (int n = 0; n < dims; ++n) {
      float* at = o + n * kPanel + r * kLanes;
      hn::Store(hn::MulAdd(scale, hn::Load(DF(), at), acc[n][r]), DF(), at);
    }
  }
}

// Every size up to the full tile, [vecs - 1][rows - 1]: tails cost no more than their share.
using ScoresTile = void (*)(const float*, const float*, std::ptrdiff_t, std::int64_t, float*, float*);
using AccumulateTile = void (*)(const float*, const float*, std::ptrdiff_t, std::int64_t, float*, const float*);
template <End end, int vecs, int... rows>
constexpr std::array<ScoresTile, sizeof...(rows)> scores_row(std::integer_sequence<int, rows...>) {
  return {scores_tile<end, vecs, rows + 1>...};
}
template <int vecs, int... rows>
constexpr std::array<AccumulateTile, sizeof...(rows)> accumulate_row(std::integer_sequence<int, rows...>) {
  return {accumulate_tile<vecs, rows + 1>...};
}
template <End end, int... vecs>
constexpr std::array<std::array<ScoresTile, kTileKeys>, sizeof...(vecs)> scores_table(
    std::integer_sequence<int, vecs...>) {
  return {scores_row<end, vecs + 1>(std::make_integer_sequence<int, kTileKeys>())...};
}
template <int... vecs>
constexpr std::array<std::array<AccumulateTile, kTileDims>, sizeof...(vecs)> accumulate_table(
    std::integer_sequence<int, vecs...>) {
  return {accumulate_row<vecs + 1>(std::make_integer_sequence<int, kTileDims>())...};
}
inline constexpr auto kScoresTiles = scores_table<End::store>(std::make_integer_sequence<int, kVecs>());
inline constexpr auto kAddTiles = scores_table<End::add>(std::make_integer_sequence<int, kVecs>());
inline constexpr auto kAccumulateTiles = accumulate_table(std::make_integer_sequence<int, kVecs>());

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
