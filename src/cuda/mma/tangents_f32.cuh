// Products and their derivatives along tangents for fp32, three tf32 products for one or one (products_f32.cuh): a
// number of B is split once for two products. tangents_16.cuh says what a tangents file gives the kernels.
#pragma once
#include "cuda/mma/products_f32.cuh"

namespace onepass::mma {

// big += hi hi, small += lo hi + hi lo.
DEV void multiply_parts(float* big, float* small, const LeftParts& a, const Parts (&b)[2]) {
  if constexpr (!kOneProduct) {
    mma_1688(small, a.lo, b[0].hi, b[1].hi);
    mma_1688(small, a.hi, b[0].lo, b[1].lo);
  }
  mma_1688(big, a.hi, b[0].hi, b[1].hi);
}
DEV float sum_of_parts(float big, float small) { return kOneProduct ? big : big + small; }

// Chains of at most eight products, which mma.sync truncates, are added up by fp32 additions.
template <i32 depth, i32 pitch, bool kMovesA = true, bool kMovesB = true, i32 tiles, i32 N, class Left>
DEV void multiply_both(float (&s)[tiles][N], float (&ds)[tiles][N], u32 rows, u32 moved_rows, const Left& left,
                       const Left& moved) {
  static_assert(tiles == 1);
  constexpr i32 kSteps = depth / 8, kChain = 4;
  constexpr bool kAllFour = !kOneProduct && depth <= 16;  // the product of both rests, too
  const u32 lane = opaque_thread() % 32, place = swizzled(lane / 4, lane % 4 / 2, pitch) + lane % 2 * 8;
  const u32 left_rows = left.address(), moved_left = moved.address();
  clear(s);
  clear(ds);
#pragma unroll 1
  for (i32 first = 0; first < kSteps; first += kChain) {
    float big[2][N] = {}, small[2][N] = {};
#pragma unroll
    for (i32 step = first; step < first + kChain; ++step) {
      if (kSteps % kChain != 0 && step >= kSteps) break;
      const auto a = left(left_rows, step);
      const auto ta = [&] {
        if constexpr (kMovesA)
          return moved(moved_left, step);
        else
          return a;
      }();
#pragma unroll
      for (i32 n = 0; n < N / 4; ++n) {
        const u32 at = along(rows + place, 2 * step) + 8 * n * pitch;
        float y[2], ty[2] = {};
        load_pair(y, at);
        if constexpr (kMovesB) load_pair(ty, at + (moved_rows - rows));
        const Parts b[2] = {split(y[0]), split(y[1])}, tb[2] = {split(ty[0]), split(ty[1])};
        if constexpr (kAllFour) {
          mma_1688(small[0] + 4 * n, a.of[0].lo, b[0].lo, b[1].lo);
          if constexpr (kMovesA) mma_1688(small[1] + 4 * n, ta.of[0].lo, b[0].lo, b[1].lo);
          if constexpr (kMovesB) mma_1688(small[1] + 4 * n, a.of[0].lo, tb[0].lo, tb[1].lo);
        }
        multiply_parts(big[0] + 4 * n, small[0] + 4 * n, a.of[0], b);
        if constexpr (kMovesA) multiply_parts(big[1] + 4 * n, small[1] + 4 * n, ta.of[0], b);
        if constexpr (kMovesB) multiply_parts(big[1] + 4 * n, small[1] + 4 * n, a.of[0], tb);
      }
    }
#pragma unroll
    for (i32 j = 0; j < N; ++j) {
      s[0][j] += sum_of_parts(big[0][j], small[0][j]);
      ds[0][j] += sum_of_parts(big[1][j], small[1][j]);
    }
  }
}

template <i32 tokens, i32 pitch, i32 share, i32 tiles, i32 N>
DEV void accumulate_both(float (&o)[tiles][N], float (&t)[tiles][N], const Weights<tokens> (&p)[tiles],
                         const Weights<tokens> (&x)[tiles], u32 v, u32 tv, u32 first_group) {
  static_assert(tiles == 1 && tokens == 16);
  constexpr i32 kTogether = features.plain() ? 2 : 1;  // groups of columns, as registers allow
  const u32 lane = opaque_thread() % 32, row = lane % 4 * 2;
  u32 values[2];
#pragma unroll
  for (u32 e = 0; e < 2; ++e)
    values[e] = along(v + swizzled(row + e, lane / 16, pitch), 2 * first_group) + lane / 4 % 4 * 4;
  LeftParts a[2], ta[2];
#pragma unroll
  for (i32 k = 0; k < 2; ++k) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      const i32 place = i / 2 + i % 2 * 2;
      a[k].set(place, p[0][4 * k + i]), ta[k].set(place, x[0][4 * k + i]);
    }
  }
  const auto columns = [&](i32 n) {
    float big[2][4] = {}, small[2][4] = {};
#pragma unroll
    for (i32 k = 0; k < 2; ++k) {
      Parts b[2], tb[2];
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const u32 at = along(values[e], 2 * share * n) + 8 * k * pitch;
        b[e] = split(load_one(at)), tb[e] = split(load_one(at + (tv - v)));
      }
      multiply_parts(big[0], small[0], a[k], b);
      multiply_parts(big[1], small[1], ta[k], b);
      multiply_parts(big[1], small[1], a[k], tb);
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      o[0][4 * n + i] += sum_of_parts(big[0][i], small[0][i]);
      t[0][4 * n + i] += sum_of_parts(big[1][i], small[1][i]);
    }
  };
#pragma unroll
  for (i32 n = 0; n < N / 4; n += kTogether) {
    by_itself<true>([&] {
#pragma unroll
      for (i32 i = n; i < (n + kTogether < N / 4 ? n + kTogether : N / 4); ++i) columns(i);
    });
  }
}

}  // namespace onepass::mma
