// The steps between Q K^T and P V on one fragment: softcap, bias, ALiBi and masks on the scores, dropout on the
// weights. docs/reference/conventions.md defines their order and meaning. The config decides which steps exist.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/mma/fragment.cuh"

#include "algebra/mask.hpp"
#include "algebra/philox.hpp"

namespace onepass {

// 1 - 2 / (1 + e^2x) loses small x to cancellation; below 0.25 the odd Taylor polynomial to x^9 is good to 1e-8
// relative.
DEV float tanh_of(float x) {
  const float y = fabsf(x), z = x * x;
  const float small = x * (1 + z * (-0.33333333f + z * (0.13333333f + z * (-0.05396825f + z * 0.02186949f))));
  const float large = 1 - 2 * rcp(1 + ex2(y * 2.885390082f));  // 2 log2(e)
  return y < 0.25f ? small : copysignf(large, x);
}
// tanh(factor / (2 log2(e)) * x) of two numbers, to 4e-7 absolutely: 1 - 2 / (1 + e^2x) with one reciprocal for both.
// MUFU's 16 a clock are what a capped score waits for. Beyond e^2x = 2^60 it is 1; a NaN stays.
DEV void tanh_pair(float factor, float& x, float& y) {
  const auto plus_one = [&](float z) { return 1.0f + ex2(min_or_nan(z * factor, 60.0f)); };
  const float a = plus_one(x), b = plus_one(y), r = rcp(a * b);
  x = fmaf(-2.0f, r * b, 1.0f);
  y = fmaf(-2.0f, r * a, 1.0f);
}

// The columns of a lane: fragment element j stands at column 8 (j / 4) + 2 t + j % 2 of its block.
DEV i32 column_of(int j, u32 quad) { return (j >> 2) * 8 + static_cast<i32>(quad) * 2 + (j & 1); }

struct FragmentRows {  // this lane's rows of the tile in hand, eight rows apart: indices within their sequence
  i32 row[2];
  static DEV FragmentRows from(i32 first) {  // the warp's first
    const i32 row = first + static_cast<i32>(threadIdx.x % 32 / 4);
    return {{row, row + 8}};
  }
};

// A bit for each of a lane's scores: of score j, bit_of(j) of its row's word.
DEV constexpr int bit_of(int j) { return 8 * (j / 4 % 4) + 2 * (j / 16) + j % 2; }
struct RowBits {
  u32 row[2];
  DEV bool has(int j) const { return row[j >> 1 & 1] >> bit_of(j) & 1; }
};

// The draws of four neighbouring columns. A seed in memory is read for each, out of L1, because keys that stay in
// registers would make them spill.
DEV PhiloxBlock draws_of(const Dropout& dropout, u32 batch, u32 head, u32 row, u32 column_block) {
  if constexpr (features.dropout_seed)
    return dropout.draws(PhiloxKeys::of(*opaque(dropout.seed)), batch, head, row, column_block);
  else
    return dropout.draws(batch, head, row, column_block);
}
// 0 or 1 / (1 - p).
DEV float dropout_factor(const Dropout& dropout, u32 batch, u32 head, u32 row, u32 column) {
  return dropout.factor(draws_of(dropout, batch, head, row, column / 4), column);
}

// Philox serves four neighbouring columns, which lie in two lanes of a quad: the even lane draws for row g, the odd one
// for row g + 8, and they swap halves. Kept weights stay as they are: O is scaled at its end (normalize_rows).
struct DropPair {
  const Dropout& dropout;
  u32 batch, head, row0, first_column, quad;
  DEV void operator()(int j, float (&w)[4]) const {  // elements j .. j + 3: two of row g, two of row g + 8
    const u32 odd = quad & 1, column = first_column + (j >> 2) * 8 + (quad >> 1) * 4;
    drop(draws_of(dropout, batch, head, row0 + 8 * odd, column / 4), dropout.last_dropped(), odd, w);
  }
  // block: the draws of this lane's row.
  static DEV void drop(const PhiloxBlock& block, u32 last, u32 odd, float (&w)[4]) {
    const u32 give0 = odd ? block.word[0] : block.word[2], give1 = odd ? block.word[1] : block.word[3];
    const u32 got0 = __shfl_xor_sync(0xffffffffu, give0, 1), got1 = __shfl_xor_sync(0xffffffffu, give1, 1);
    const u32 own0 = odd ? block.word[2] : block.word[0], own1 = odd ? block.word[3] : block.word[1];
    const u32 draw[4] = {odd ? got0 : own0, odd ? got1 : own1, odd ? own0 : got0, odd ? own1 : got1};
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = draw[i] > last ? w[i] : 0.0f;
  }
};

}  // namespace onepass
