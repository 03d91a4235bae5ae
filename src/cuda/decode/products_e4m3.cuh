// Products of 16-bit rows with tiles of e4m3, whose numbers become 16-bit ones in registers.
//
// A number's sign and seven bits in the places that they have in bf16 or fp16 are that number times 2^-120 or 2^-8,
// subnormals too, since only the exponent's bias differs: shifts and masks, and no multiplication (kE4m3Unit is made
// good where factors are). NaN alone would come out finite: nan_bits() remembers it, and its rows go to the fallback.
//
// ldmatrix hands a lane four neighbours of a row, n .. n + 3, or transposed two columns of two keys. The even ones of
// them and the odd ones make a register each, so that columns of Q have to lie the even ones first within every
// sixteen (sort_query), and O comes out so (sort_output).
#pragma once
#include "cuda/decode/decode_tile.cuh"
#include "cuda/device/mma.cuh"

namespace onepass::decode {

constexpr float kE4m3Unit = features.input == ScalarType::bf16 ? 0x1p120f : 0x1p8f;

struct Halves {
  u32 even, odd;  // bytes 0 and 2 of a register, 1 and 3
};
DEV Halves halves_of(u32 x) {
  constexpr u32 kSign = 0x80008000u;
  constexpr bool kBf16 = features.input == ScalarType::bf16;
  constexpr u32 kSize = kBf16 ? 0x07f007f0u : 0x3f803f80u;
  return {((x << 8) & kSign) | ((kBf16 ? x << 4 : x << 7) & kSize), (x & kSign) | ((kBf16 ? x >> 4 : x >> 1) & kSize)};
}
// Bit 7 of the bytes that are NaN, 0x7f or 0xff.
DEV u32 nan_bits(u32 x) { return (x & 0x7f7f7f7fu) + 0x01010101u; }
DEV bool any_nan(u32 seen) { return __any_sync(0xffffffffu, (seen & 0x80808080u) != 0); }

// As multiply_rows of products_16.cuh. seen: nan_bits of what was read.
template <i32 depth, i32 pitch, i32 tiles, i32 N, class Left>
DEV void multiply_rows_e4m3(float (&s)[tiles][N], u32 tile, const Left& left, u32& seen) {
  const u32 lane = own_thread() % 32, left_rows = left.address();
  const u32 rows = tile + swizzled(lane / 8 % 2 * 8 + lane % 8, lane / 16, pitch);
  clear(s);
#pragma unroll
  for (i32 k = 0; k < depth / 16; k += 2) {
    const bool two = k + 1 < depth / 16;
    const auto a = left(left_rows, k), a1 = left(left_rows, two ? k + 1 : k);
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      u32 x[4];  // keys 0 to 7 and 8 to 15 of columns 16 k .., then of the next sixteen
      ldmatrix4(x, along(rows, k) + 16 * n * pitch);
#pragma unroll
      for (i32 i = 0; i < (two ? 4 : 2); ++i) {
        seen |= nan_bits(x[i]);
        const Halves b = halves_of(x[i]);
#pragma unroll
        for (i32 r = 0; r < tiles; ++r)
          mma_16816(Element{}, s[r] + 8 * n + 4 * (i % 2), (i < 2 ? a : a1).of + 4 * r, b.even, b.odd);
      }
    }
  }
}

// As multiply_columns.
template <i32 tokens, i32 pitch, i32 tiles, i32 N>
DEV void multiply_columns_e4m3(float (&o)[tiles][N], const Weights<tokens> (&w)[tiles], u32 tile, u32& seen) {
  const u32 lane = own_thread() % 32;
  const u32 values = tile + swizzled(lane % 16, lane / 16, pitch);
#pragma unroll
  for (i32 k = 0; k < tokens / 16; ++k) {
#pragma unroll
    for (i32 n = 0; n < N / 8; n += 2) {
      const bool two = n + 1 < N / 8;
      u32 x[4];  // keys 0 to 7 and 8 to 15 of sixteen columns, then of the next
      ldmatrix4_transposed(x, along(values, n) + 16 * k * pitch);
#pragma unroll
      for (i32 i = 0; i < (two ? 2 : 1); ++i) {
        seen |= nan_bits(x[2 * i]) | nan_bits(x[2 * i + 1]);
        const Halves low = halves_of(x[2 * i]), high = halves_of(x[2 * i + 1]);
#pragma unroll
        for (i32 r = 0; r < tiles; ++r) {
          mma_16816(Element{}, o[r] + 8 * (n + i), w[r] + 4 * k, low.even, high.even);
          mma_16816(Element{}, o[r] + 8 * (n + i) + 4, w[r] + 4 * k, low.odd, high.odd);
        }
      }
    }
  }
}

// Columns of Q, in shared memory: of every sixteen the even ones first. By all threads.
DEV void sort_query(u32 sm) {
  constexpr i32 kGroups = kQkDepth / 16;
#pragma unroll 1
  for (i32 at = opaque_thread(); at < kBlockM * kGroups; at += kThreads) {
    const i32 row = at / kGroups, chunk = (at - row * kGroups) * 2;
    const u32 first = sm + kLayout.q + swizzled(row, chunk, kLayout.q_pitch),
              second = sm + kLayout.q + swizzled(row, chunk + 1, kLayout.q_pitch);
    u32 x[8];
    load_four(first, x[0], x[1], x[2], x[3]);
    load_four(second, x[4], x[5], x[6], x[7]);
    const auto pick = [&](i32 i, u32 selector) { return choose_bytes(x[2 * i], x[2 * i + 1], selector); };
    store_four(first, pick(0, 0x5410), pick(1, 0x5410), pick(2, 0x5410), pick(3, 0x5410));
    store_four(second, pick(0, 0x7632), pick(1, 0x7632), pick(2, 0x7632), pick(3, 0x7632));
  }
}

// O's fragments have columns 4 t, 4 t + 2, 4 t + 1 and 4 t + 3 of every sixteen in lane t of a quad; column_of() says
// 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t. Times `factor`.
template <i32 tiles, i32 N>
DEV void sort_output(float (&o)[tiles][N], float factor) {
  const i32 t = static_cast<i32>(opaque_thread() % 4), quad = static_cast<i32>(opaque_thread() % 32) - t;
  const bool upper = t % 2 != 0;  // 2 t and 2 t + 1 are the last two of a lane's four
#pragma unroll
  for (i32 r = 0; r < tiles; ++r) {
#pragma unroll
    for (i32 j = 0; j < N; j += 8) {
#pragma unroll
      for (i32 i = 0; i < 4; i += 2) {                                                         // rows g and g + 8
        const float of[4] = {o[r][j + i], o[r][j + 4 + i], o[r][j + i + 1], o[r][j + 5 + i]};  // columns 4 t .. 4 t + 3
        float got[2][4];
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {  // of lane t / 2, of lane 2 + t / 2
#pragma unroll
          for (i32 c = 0; c < 4; ++c) got[half][c] = __shfl_sync(0xffffffffu, of[c], quad + 2 * half + t / 2);
        }
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
          o[r][j + 4 * half + i] = factor * (upper ? got[half][2] : got[half][0]);
          o[r][j + 4 * half + i + 1] = factor * (upper ? got[half][3] : got[half][1]);
        }
      }
    }
  }
}

}  // namespace onepass::decode
