// The two matrix products of a warp for fp32, at the accuracy of fp32, by tf32 tensor cores (products_16.cuh says what
// a products file gives the kernel).
//
// A number is its tf32 rounding and a rest, x = hi + lo, and a product is three:
//
//   a b = hi_a hi_b + (hi_a lo_b + lo_a hi_b) + [lo_a lo_b]
//
// The last is at most 2^-22 |a b| and left out, except in scores of few elements, where no other error hides it.
//
// mma.sync truncates every sum it makes, always towards zero: a bias that grows with the length of a chain of them. So
// chains are short: a fresh accumulator for every kDepth elements of q and k and every kKeys keys, added up by fp32
// additions, which round. The small products have accumulators of their own, in which truncation is 2^-11 of that; in
// P V only where O leaves registers for them (kApart).
//
// A contraction may run in any order as long as both operands agree: where the instruction speaks of columns t and
// t + 4 of eight, lane t of a quad takes 2 t and 2 t + 1. Its weights stand in these columns, and Q and K are read in
// pairs.
#pragma once
#include "cuda/device/mma.cuh"
#include "cuda/sm80/forward_tile.cuh"

namespace onepass::sm80 {

using Weights = float[kBlockN / 2];  // where the scores stood

constexpr i32 kDepth = kQkDepth <= 64 ? 32 : 64, kKeys = kBlockN % 32 == 0 ? 32 : 16;
constexpr bool kApart = kRowTiles * kOutN <= 128 || kRowTiles == 1;  // else O leaves no registers for it
constexpr bool kAllFour = kQkDepth <= 16;                            // all four products in scores

struct Parts {
  u32 hi, lo;
};
DEV Parts split(float x) {  // as cvt.rna.tf32 rounds, which is four instructions; of lo mma.sync sees 11 bits
  const u32 hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  return {hi, __float_as_uint(x - __uint_as_float(hi))};
}
struct LeftParts {  // of an A operand of 16 x 8
  u32 hi[4], lo[4];
  DEV void set(i32 i, float x) {
    const Parts y = split(x);
    hi[i] = y.hi, lo[i] = y.lo;
  }
};

template <int N>
DEV void clear(float (&x)[kRowTiles][N]) {
#pragma unroll
  for (i32 i = 0; i < kRowTiles * N; ++i) x[i / N][i % N] = 0.0f;
}

struct QueryOperand {
  u32 tile;  // the block's
  DEV void load() {}

  // The address of elements 2 t and 2 t + 1 of row g of this warp's first row tile (lane = 4 g + t).
  DEV u32 address() const {
    const u32 thread = opaque_thread(), row = thread / 32 * kWarpRows + thread % 32 / 4;
    return tile + swizzled(row, thread % 4 / 2, kLayout.q_pitch) + thread % 2 * 8;
  }
  // Elements 8 k .. 8 k + 7 of every row tile.
  static DEV void fragments(LeftParts (&a)[kRowTiles], u32 address, i32 k) {
#pragma unroll
    for (i32 i = 0; i < 2 * kRowTiles; ++i) {  // rows g and g + 8 of each
      float x[2];
      load_pair(x, along(address, 2 * k) + 8 * i * kLayout.q_pitch);
#pragma unroll
      for (i32 e = 0; e < 2; ++e) a[i / 2].set(i % 2 + 2 * e, x[e]);
    }
  }
};

DEV void issue_scores(float (&s)[kRowTiles][kBlockN / 2], const QueryOperand& query, u32 tile) {
  constexpr i32 kSteps = kQkDepth / 8, kChain = kDepth / 8;
  const u32 lane = opaque_thread() % 32, rows = query.address();
  const u32 keys = tile + swizzled(lane / 4, lane % 4 / 2, kLayout.k_pitch) + lane % 2 * 8;
  float big[kRowTiles][kBlockN / 2], small[kRowTiles][kBlockN / 2];
#pragma unroll
  for (i32 k = 0; k < kSteps; ++k) {
    if (k == 0) clear(small);
    if (k % kChain == 0) clear(big);
    LeftParts a[kRowTiles];
    QueryOperand::fragments(a, rows, k);
#pragma unroll
    for (i32 n = 0; n < kBlockN / 8; ++n) {
      float x[2];
      load_pair(x, along(keys, 2 * k) + 8 * n * kLayout.k_pitch);
      const Parts b[2] = {split(x[0]), split(x[1])};
#pragma unroll
      for (i32 product = kAllFour ? 0 : 1; product < 4; ++product) {
#pragma unroll
        for (i32 r = 0; r < kRowTiles; ++r) {
          if (product == 0) mma_1688(small[r] + 4 * n, a[r].lo, b[0].lo, b[1].lo);
          if (product == 1) mma_1688(small[r] + 4 * n, a[r].lo, b[0].hi, b[1].hi);
          if (product == 2) mma_1688(small[r] + 4 * n, a[r].hi, b[0].lo, b[1].lo);
          if (product == 3) mma_1688(big[r] + 4 * n, a[r].hi, b[0].hi, b[1].hi);
        }
      }
    }
    const bool last = k == kSteps - 1;
    if (!last && (k + 1) % kChain != 0) continue;
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (i32 j = 0; j < kBlockN / 2; ++j) {
        s[r][j] = k < kChain ? big[r][j] : s[r][j] + big[r][j];
        if (last) s[r][j] += small[r][j];
      }
    }
  }
}

DEV void issue_output(float (&o)[kRowTiles][kOutN / 2], const Weights (&w)[kRowTiles], u32 tile) {
  const u32 lane = opaque_thread() % 32, row = lane % 4 * 2;
  const u32 values[2] = {tile + swizzled(row, lane / 16, kLayout.v_pitch) + lane / 4 % 4 * 4,
                         tile + swizzled(row + 1, lane / 16, kLayout.v_pitch) + lane / 4 % 4 * 4};
#pragma unroll
  for (i32 first = 0; first < kBlockN; first += kKeys) {
    LeftParts a[kKeys / 8][kRowTiles];
#pragma unroll
    for (i32 k = 0; k < kKeys / 8; ++k) {
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) a[k][r].set(i / 2 + i % 2 * 2, w[r][first / 2 + 4 * k + i]);
      }
    }
#pragma unroll
    for (i32 n = 0; n < kOutN / 8; ++n) {
      float big[kRowTiles][4] = {}, small[kRowTiles][4] = {};
#pragma unroll
      for (i32 k = 0; k < kKeys / 8; ++k) {
        Parts b[2];
#pragma unroll
        for (i32 e = 0; e < 2; ++e) b[e] = split(load_one(along(values[e], 2 * n) + (first + 8 * k) * kLayout.v_pitch));
#pragma unroll
        for (i32 product = 1; product < 4; ++product) {
#pragma unroll
          for (i32 r = 0; r < kRowTiles; ++r) {
            float* const rest = kApart ? small[r] : big[r];
            if (product == 1) mma_1688(rest, a[k][r].lo, b[0].hi, b[1].hi);
            if (product == 2) mma_1688(rest, a[k][r].hi, b[0].lo, b[1].lo);
            if (product == 3) mma_1688(big[r], a[k][r].hi, b[0].hi, b[1].hi);
          }
        }
      }
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
          if constexpr (kApart) big[r][i] += small[r][i];
          o[r][4 * n + i] += big[r][i];
        }
      }
    }
  }
}

}  // namespace onepass::sm80
