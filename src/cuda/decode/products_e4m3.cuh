// Products of rows with tiles of e4m3, whose numbers become fp16 in registers: two instructions for four of them where
// there are such (8.9), which know NaN, and no multiplication where not (f16_of_e4m3). Rows of bf16 become fp16 with a
// power of 2 of their own, and rows of e4m3 as they are (sort_query), so all products are fp16's.
//
// ldmatrix hands a lane four neighbours of a row of K, n .. n + 3, of which the first two and the last two are the
// halves of an operand's sixteen columns: Q's have to lie so (sort_query). Of V it hands two columns of two keys, whose
// even column and odd one make a register each, and O comes out so (sort_output).
#pragma once
#include "cuda/decode/decode_tile.cuh"
#include "cuda/device/e4m3.cuh"
#include "cuda/mma/mma.cuh"

namespace onepass::decode {

// Where the conversion does not know NaN: bit 7 of the bytes that are, 0x7f or 0xff. Their rows go to the fallback.
DEV u32 nan_bits(u32 x) { return kE4m3HasNaN ? 0 : (x & 0x7f7f7f7fu) + 0x01010101u; }
DEV bool any_nan(u32 seen) { return !kE4m3HasNaN && __any_sync(0xffffffffu, (seen & 0x80808080u) != 0); }

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
        const u32 first = f16_of_e4m3<0>(x[i]), second = f16_of_e4m3<1>(x[i]);
#pragma unroll
        for (i32 r = 0; r < tiles; ++r)
          mma_16816(F16{}, s[r] + 8 * n + 4 * (i % 2), (i < 2 ? a : a1).of + 4 * r, first, second);
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
        const u32 low = choose_bytes(x[2 * i], 0, 0x3120), high = choose_bytes(x[2 * i + 1], 0, 0x3120);  // by columns
#pragma unroll
        for (i32 r = 0; r < tiles; ++r) {
          mma_16816(F16{}, o[r] + 8 * (n + i), w[r] + 4 * k, f16_of_e4m3<0>(low), f16_of_e4m3<0>(high));
          mma_16816(F16{}, o[r] + 8 * (n + i) + 4, w[r] + 4 * k, f16_of_e4m3<1>(low), f16_of_e4m3<1>(high));
        }
      }
    }
  }
}

// Two e4m3 of a register, bytes 0 and 1 or 2 and 3, as fp16. NaN stays NaN.
template <i32 half>
DEV u32 exact_pair(u32 x) {
  if constexpr (kE4m3HasNaN) return f16_of_e4m3<half>(x);
  return F16::pack(E4m3::unpack(static_cast<unsigned char>(x >> 16 * half)),
                   E4m3::unpack(static_cast<unsigned char>(x >> (16 * half + 8))));
}

// Rows of Q, in shared memory, as the products take them: of every sixteen columns 0, 1, 4, 5, 8 .. first, then 2, 3,
// 6, 7 ..; bf16 as fp16 times the power of 2 that brings the row's largest number to 2^14, with its inverse in `units`.
// fp16 then loses 2^-39 of that number, where an fp32 sum loses 2^-24. Infinities and NaN stay. The unit of a row of
// e4m3 is its scale, factor(row). All threads work on it, half a warp on a row.
template <class Factor>
DEV void sort_query(u32 sm, const Factor& factor) {
  constexpr i32 kGroups = kQkDepth / 16;
#pragma unroll 1
  for (i32 at = opaque_thread(); at < kBlockM * 16; at += kThreads) {
    const i32 row = at / 16, group = at % 16;
    const u32 first = sm + kLayout.q + swizzled(row, 2 * group, kLayout.q_pitch),
              second = sm + kLayout.q + swizzled(row, 2 * group + 1, kLayout.q_pitch);
    u32 x[8] = {};
    if constexpr (kFp8Query) {
      if (group < kGroups) {
        load_four(first, x[0], x[1], x[2], x[3]);
        store_four(first, exact_pair<0>(x[0]), exact_pair<0>(x[1]), exact_pair<0>(x[2]), exact_pair<0>(x[3]));
        store_four(second, exact_pair<1>(x[0]), exact_pair<1>(x[1]), exact_pair<1>(x[2]), exact_pair<1>(x[3]));
      }
      if (group == 0) store_word(sm + kLayout.units + 4 * row, __float_as_int(factor(row)));
      continue;
    }
    if (group < kGroups) {
      load_four(first, x[0], x[1], x[2], x[3]);
      load_four(second, x[4], x[5], x[6], x[7]);
    }
    if constexpr (features.input == ScalarType::bf16) {
      u32 largest = 0;
#pragma unroll
      for (i32 i = 0; i < 8; ++i) largest = max(largest, max(x[i] & 0x7fffu, x[i] >> 16 & 0x7fffu));
#pragma unroll
      for (i32 step = 8; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      const u32 unit = min(268 - (largest >> 7), 253u);  // the power's exponent, biased
      const float by = __uint_as_float(unit << 23);
#pragma unroll
      for (i32 i = 0; i < 8; ++i)
        x[i] = F16::pack(Bf16::unpack(static_cast<u16>(x[i])) * by, Bf16::unpack(static_cast<u16>(x[i] >> 16)) * by);
      if (group == 0) store_word(sm + kLayout.units + 4 * row, (254 - unit) << 23);
    } else if (group == 0) {
      store_word(sm + kLayout.units + 4 * row, __float_as_int(1.0f));
    }
    if (group < kGroups) {
      store_four(first, x[0], x[2], x[4], x[6]);
      store_four(second, x[1], x[3], x[5], x[7]);
    }
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
