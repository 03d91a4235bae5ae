// The two matrix products of a warp for fp32, at the accuracy of fp32, by tf32 tensor cores (products_16.cuh says what
// a products file gives the kernel).
//
// A number is its tf32 rounding and a rest, x = hi + lo, and a product is three:
//
//   a b = hi_a hi_b + (hi_a lo_b + lo_a hi_b) + [lo_a lo_b]
//
// The last is at most 2^-22 |a b| and left out, except in scores of few elements, where no other error hides it.
// With features.tf32 a product is hi_a hi_b alone, and nothing of the rests is computed.
//
// mma.sync truncates every sum it makes, always towards zero: a bias that grows with the length of a chain of them. So
// chains are short: a fresh accumulator for kChain instructions along a row and every kKeys tokens, added up by fp32
// additions, which round. The small products have accumulators of their own, in which truncation is 2^-11 of that; in
// P V only where O leaves registers for them (kApart).
//
// A contraction may run in any order as long as both operands agree: where the instruction speaks of columns t and
// t + 4 of eight, lane t of a quad takes 2 t and 2 t + 1. Its weights stand in these columns, and Q and K are read in
// pairs.
#pragma once
#include "cuda/mma/mma.cuh"
#include "cuda/mma/tile.cuh"

namespace onepass::mma {

constexpr i32 kStep = 8;          // elements of a dot product in one instruction
constexpr i32 kGroupColumns = 8;  // of a tile that multiply_columns reads at once: 32 bytes

template <i32 tokens>
using Weights = float[tokens / 2];  // where the results stood

constexpr bool kOneProduct = features.tf32;

struct Parts {
  u32 hi, lo;
};
// To nearest, ties away from zero: half a unit is added, and mma.sync cuts the rest off. NaN, infinity and a number
// whose rounding is infinite become NaN, as their rests are in three products: such rows are computed again. Without
// the products the NaN 0x7fffffff becomes 0, and a score of a finite number may become -inf, which hides its key.
DEV u32 rounded(float x) {
  const float y = __uint_as_float(__float_as_uint(x) + 0x1000u);
  return __float_as_uint(__fmaf_rn(x, y * 0.0f, y));
}
DEV Parts split(float x) {  // as cvt.rna.tf32 rounds, which is four instructions; of lo mma.sync sees 11 bits
  if constexpr (kOneProduct) return {rounded(x), 0};
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

// Elements 8 k .. 8 k + 7 of `tiles` times sixteen rows of a tile.
template <i32 tiles, i32 pitch>
struct LeftFragments {
  LeftParts of[tiles];

  // The address of elements 2 t and 2 t + 1 of row g of this warp's first row tile (lane = 4 g + t).
  static DEV u32 address(u32 tile) {
    const u32 thread = opaque_thread(), row = thread / 32 / kSameRows * (16 * tiles) + thread % 32 / 4;
    return tile + swizzled(row, thread % 4 / 2, pitch) + thread % 2 * 8;
  }
  DEV void load(u32 address, i32 k) {
#pragma unroll
    for (i32 i = 0; i < 2 * tiles; ++i) {  // rows g and g + 8 of each
      float x[2];
      load_pair(x, along(address, 2 * k) + 8 * i * pitch);
#pragma unroll
      for (i32 e = 0; e < 2; ++e) of[i / 2].set(i % 2 + 2 * e, x[e]);
    }
  }
};

// One chain after the other, so that a kernel without registers to spare reads no more ahead.
template <i32 depth, i32 pitch, bool add = false, i32 tiles, i32 N, class Left>
DEV void multiply_rows(float (&s)[tiles][N], u32 tile, const Left& left) {
  constexpr i32 kSteps = depth / 8, kChain = depth <= 64 ? (kSteps + 1) / 2 : 8;
  constexpr i32 kFirst = kOneProduct ? 3 : depth <= 16 ? 0 : 1;  // of the four products
  const u32 lane = opaque_thread() % 32, left_rows = left.address();
  const u32 rows = tile + swizzled(lane / 4, lane % 4 / 2, pitch) + lane % 2 * 8;
  float big[tiles][N], small[tiles][N];
#pragma unroll(kFewRegisters ? 1 : 64)
  for (i32 first = 0; first < kSteps; first += kChain) {
    if (first == 0 && !kOneProduct) clear(small);
    clear(big);
#pragma unroll
    for (i32 step = 0; step < kChain; ++step) {
      const i32 k = first + step;
      if (kSteps % kChain != 0 && k >= kSteps) break;
      const auto a = left(left_rows, k);
#pragma unroll
      for (i32 n = 0; n < N / 4; ++n) {
        float x[2];
        load_pair(x, along(rows, 2 * k) + 8 * n * pitch);
        const Parts b[2] = {split(x[0]), split(x[1])};
#pragma unroll
        for (i32 product = kFirst; product < 4; ++product) {
#pragma unroll
          for (i32 r = 0; r < tiles; ++r) {
            if (product == 0) mma_1688(small[r] + 4 * n, a.of[r].lo, b[0].lo, b[1].lo);
            if (product == 1) mma_1688(small[r] + 4 * n, a.of[r].lo, b[0].hi, b[1].hi);
            if (product == 2) mma_1688(small[r] + 4 * n, a.of[r].hi, b[0].lo, b[1].lo);
            if (product == 3) mma_1688(big[r] + 4 * n, a.of[r].hi, b[0].hi, b[1].hi);
          }
        }
      }
    }
    const bool last = first + kChain >= kSteps;
#pragma unroll
    for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
      for (i32 j = 0; j < N; ++j) {
        s[r][j] = first == 0 && !add ? big[r][j] : s[r][j] + big[r][j];
        if (last && !kOneProduct) s[r][j] += small[r][j];
      }
    }
  }
}

template <i32 tokens, i32 pitch, i32 step = 1, i32 tiles, i32 N>
DEV void multiply_columns(float (&o)[tiles][N], const Weights<tokens> (&w)[tiles], u32 tile, u32 first_group = 0) {
  constexpr i32 kKeys = tokens % 32 == 0 ? 32 : 16;
  // Else O leaves no registers for the small products' own accumulators.
  constexpr bool kApart = !kOneProduct && !kFewRegisters && (tiles * 2 * N <= 128 || tiles == 1);
  const u32 lane = opaque_thread() % 32, row = lane % 4 * 2;
  const u32 values[2] = {along(tile + swizzled(row, lane / 16, pitch), 2 * first_group) + lane / 4 % 4 * 4,
                         along(tile + swizzled(row + 1, lane / 16, pitch), 2 * first_group) + lane / 4 % 4 * 4};
#pragma unroll
  for (i32 first = 0; first < tokens; first += kKeys) {
    LeftParts a[kKeys / 8][tiles];
#pragma unroll
    for (i32 k = 0; k < kKeys / 8; ++k) {
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) a[k][r].set(i / 2 + i % 2 * 2, w[r][first / 2 + 4 * k + i]);
      }
    }
    const auto columns = [&](i32 n) {
      float big[tiles][4] = {}, small[tiles][4] = {};
#pragma unroll
      for (i32 k = 0; k < kKeys / 8; ++k) {
        Parts b[2];
#pragma unroll
        for (i32 e = 0; e < 2; ++e) b[e] = split(load_one(along(values[e], 2 * step * n) + (first + 8 * k) * pitch));
#pragma unroll
        for (i32 product = kOneProduct ? 3 : 1; product < 4; ++product) {
#pragma unroll
          for (i32 r = 0; r < tiles; ++r) {
            float* const rest = kApart ? small[r] : big[r];
            if (product == 1) mma_1688(rest, a[k][r].lo, b[0].hi, b[1].hi);
            if (product == 2) mma_1688(rest, a[k][r].hi, b[0].lo, b[1].lo);
            if (product == 3) mma_1688(big[r], a[k][r].hi, b[0].hi, b[1].hi);
          }
        }
      }
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
          if constexpr (kApart) big[r][i] += small[r][i];
          o[r][4 * n + i] += big[r][i];
        }
      }
    };
    constexpr bool kByThemselves = kFewRegisters && N <= 32 && tiles == 1 && config.blocks <= 2;
    constexpr i32 kTogether = kByThemselves ? 4 : N / 4;
#pragma unroll
    for (i32 n = 0; n < N / 4; n += kTogether) {
      by_itself<kByThemselves>([&] {
#pragma unroll
        for (i32 i = n; i < (n + kTogether < N / 4 ? n + kTogether : N / 4); ++i) columns(i);
      });
    }
  }
}

template <i32 tokens, i32 pitch>
DEV void store_results(const Weights<tokens>& w, u32 tile, u32 row, u32 first_group) {
  const u32 lane = opaque_thread() % 32;
#pragma unroll
  for (i32 j = 0; j < tokens / 2; j += 2)
    store_pair(tile + swizzled(row + j / 2 % 2 * 8 + lane / 4, 2 * first_group + j / 4 * 2 + lane % 4 / 2, pitch) +
                   lane % 2 * 8,
               w[j], w[j + 1]);
}
template <i32 tokens, i32 pitch>
DEV void load_results(Weights<tokens>& w, u32 tile, u32 row, u32 first_group) {
  const u32 lane = opaque_thread() % 32;
  const u32 from = tile + swizzled(row + lane / 4, 2 * first_group + lane % 4 / 2, pitch) + lane % 2 * 8;
#pragma unroll
  for (i32 j = 0; j < tokens / 2; j += 2) {
    float x[2];
    load_pair(x, along(from, j / 4 * 2) + j / 2 % 2 * 8 * pitch);
    w[j] = x[0], w[j + 1] = x[1];
  }
}
template <i32 tokens, i32 pitch>
DEV void load_transposed(Weights<tokens>& w, u32 tile, u32 column) {
  const u32 lane = opaque_thread() % 32;
#pragma unroll
  for (i32 i = 0; i < 4; ++i) {
    const u32 at = column + i / 2 * 8 + lane / 4;
    const u32 from = tile + swizzled(lane % 4 * 2 + i % 2, at / 4, pitch) + at % 4 * 4;
#pragma unroll
    for (i32 k = 0; k < tokens / 8; ++k) w[4 * k + i] = load_one(from + 8 * k * pitch);
  }
}

}  // namespace onepass::mma
