// Products and their derivatives along tangents for fp16 and bf16: a fragment of B feeds two products for each row
// tile.
//
// A tangents file gives the kernels multiply_both and accumulate_both, and has the products file within it.
#pragma once
#include "cuda/mma/products_16.cuh"

namespace onepass::mma {

// s = A B^T, ds = tA B^T + A tB^T. left, moved: LeftFragments of A and of its tangent. kMovesA, kMovesB: there is a tA,
// a tB; what is not there is a tangent of 0.
template <i32 depth, i32 pitch, bool kMovesA = true, bool kMovesB = true, i32 tiles, i32 N, class Left>
DEV void multiply_both(float (&s)[tiles][N], float (&ds)[tiles][N], u32 rows, u32 moved_rows, const Left& left,
                       const Left& moved) {
  const u32 lane = own_thread() % 32, place = swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2, pitch);
  const u32 left_rows = left.address(), moved_left = moved.address();
  clear(s);
  clear(ds);
#pragma unroll
  for (i32 step = 0; step < depth / 16; ++step) {
    const auto a = left(left_rows, step);
    const auto ta = [&] {
      if constexpr (kMovesA)
        return moved(moved_left, step);
      else
        return a;
    }();
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      const u32 at = along(rows + place, 2 * step) + 16 * n * pitch;
      u32 b[4], tb[4];
      ldmatrix4(b, at);
      if constexpr (kMovesB) ldmatrix4(tb, at + (moved_rows - rows));
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
          const i32 j = 8 * n + 4 * half;
          if constexpr (kMovesA) mma_16816(Element{}, ds[r] + j, ta.of + 4 * r, b[2 * half], b[2 * half + 1]);
          mma_16816(Element{}, s[r] + j, a.of + 4 * r, b[2 * half], b[2 * half + 1]);
          if constexpr (kMovesB) mma_16816(Element{}, ds[r] + j, a.of + 4 * r, tb[2 * half], tb[2 * half + 1]);
        }
      }
    }
  }
}

// o += W B, t += X B + W tB. v, tv: `tokens` rows of B and of its tangent; groups of columns as multiply_columns has
// them.
template <i32 tokens, i32 pitch, i32 share, i32 tiles, i32 N>
DEV void accumulate_both(float (&o)[tiles][N], float (&t)[tiles][N], const Weights<tokens> (&p)[tiles],
                         const Weights<tokens> (&x)[tiles], u32 v, u32 tv, u32 first_group) {
  const u32 lane = own_thread() % 32;
  const u32 values = along(v + swizzled(lane % 16, lane / 16, pitch), 2 * first_group);
#pragma unroll
  for (i32 k = 0; k < tokens / 16; ++k) {
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      const u32 at = along(values, 2 * share * n) + 16 * k * pitch;
      u32 b[4], tb[4];
      ldmatrix4_transposed(b, at);
      ldmatrix4_transposed(tb, at + (tv - v));
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
          const i32 j = 8 * n + 4 * half;
          mma_16816(Element{}, t[r] + j, x[r] + 4 * k, b[2 * half], b[2 * half + 1]);
          mma_16816(Element{}, o[r] + j, p[r] + 4 * k, b[2 * half], b[2 * half + 1]);
          mma_16816(Element{}, t[r] + j, p[r] + 4 * k, tb[2 * half], tb[2 * half + 1]);
        }
      }
    }
  }
}

}  // namespace onepass::mma
