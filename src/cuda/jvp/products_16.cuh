// The products of the forward mode for fp16 and bf16: a fragment of K or V feeds two products for each row tile.
//
// A products file gives the kernel multiply_scores and accumulate. Tiles lie in shared memory as TileCopy writes them.
#pragma once
#include "cuda/mma/products_16.cuh"

namespace onepass::cuda::jvp {

using namespace mma;

// s = Q K^T, ds = tQ K^T + Q tK^T. k, tk: tiles of keys; query, moved: rows of Q and of its tangent.
template <i32 depth, i32 pitch, i32 tiles, i32 N, class Rows>
DEV void multiply_scores(float (&s)[tiles][N], float (&ds)[tiles][N], u32 k, u32 tk, const Rows& query,
                         const Rows& moved) {
  const u32 lane = own_thread() % 32, place = swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2, pitch);
  const u32 query_rows = query.address(), moved_rows = moved.address();
  clear(s);
  clear(ds);
#pragma unroll
  for (i32 step = 0; step < depth / 16; ++step) {
    const auto a = query(query_rows, step), ta = moved(moved_rows, step);
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      const u32 at = along(k + place, 2 * step) + 16 * n * pitch;
      u32 b[4], tb[4];
      ldmatrix4(b, at);
      ldmatrix4(tb, at + (tk - k));
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
          const i32 j = 8 * n + 4 * half;
          mma_16816(Element{}, ds[r] + j, ta.of + 4 * r, b[2 * half], b[2 * half + 1]);
          mma_16816(Element{}, s[r] + j, a.of + 4 * r, b[2 * half], b[2 * half + 1]);
          mma_16816(Element{}, ds[r] + j, a.of + 4 * r, tb[2 * half], tb[2 * half + 1]);
        }
      }
    }
  }
}

// o += P V, t += X V + P tV. v, tv: tiles of `tokens` keys; groups of columns as multiply_columns takes them.
template <i32 tokens, i32 pitch, i32 share, i32 tiles, i32 N>
DEV void accumulate(float (&o)[tiles][N], float (&t)[tiles][N], const Weights<tokens> (&p)[tiles],
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

}  // namespace onepass::cuda::jvp
