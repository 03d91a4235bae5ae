// The rotation of rows by a random Hadamard matrix on tensor cores: x' = D H x, D the signs of columns.
//
// H[c][c'] = (-1)^(number of bits set in both c and c'), so each bit of the column index is contracted on its own. A
// warp has 16 rows: lane 4 g + t has rows g and g + 8, and of x the columns 32 j + 8 t + e, e = 0 .. 7, as word e / 2
// of 16-byte piece j.
//
//   bit of a column | of x            | contracted by                           | of the result
//   0               | half of a word  | mma, bit 0 of k                         | bit 0 of n
//   1, 2            | word of a piece | sums and differences within the lane    | w
//   3               | t, bit 0        | mma, bit 1 of k                         | one of two B fragments
//   4               | t, bit 1        | mma, bit 2 of k                         | bit 1 of n: t, bit 0
//   5               | j, bit 0        | mma, bit 3 of k                         | bit 2 of n: t, bit 1
//   6, 7            | j, bits 1, 2    | products added to one sum, with B or -B | out
//
// There are no shuffles; with up to three an element, the rotation waited for them. A lane has 16 neighbouring columns
// 64 out + 16 t + e' of the result, which leave by one store.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

template <ScalarType input, i32 pieces>
struct Hadamard {
  using Format = typename ElementOf<input>::Format;
  using Words = u32[2][pieces][4];  // x: rows g and g + 8
  using Out = float[4][2][4];       // w; bit 3; rows g and g + 8, n0

  u32 b[2][2];  // B fragments, of 1 and -1: bit 3 of the result; bit 3 of k

  // D, as x's words have it, into shared memory for all lanes of a quad; with a barrier.
  DEV static void write_signs(const QuantizeParams& p, u32 to) {
    for (i32 i = static_cast<i32>(threadIdx.x); i < pieces * 16; i += kQuantizeTileThreads) {
      const u32 signs = p.sign[i / 16] >> i % 16 * 2;
      store_word(to + i * 4, static_cast<i32>((signs & 1) << 15 | (signs & 2) << 30));
    }
    __syncthreads();
  }
  DEV static void change_signs(Words& x, u32 from) {
#pragma unroll
    for (i32 j = 0; j < pieces; ++j) {
      u32 m[4];
      load_four(from + (j * 4 + static_cast<i32>(threadIdx.x % 4)) * 16, m[0], m[1], m[2], m[3]);
#pragma unroll
      for (i32 w = 0; w < 4; ++w) x[0][j][w] ^= m[w], x[1][j][w] ^= m[w];
    }
  }

  DEV void make_fragments() {
    constexpr u32 kOnes = input == ScalarType::bf16 ? 0x3f803f80u : 0x3c003c00u;
    const u32 t = threadIdx.x % 4, n = threadIdx.x % 32 / 4;
#pragma unroll
    for (u32 bit3 = 0; bit3 < 2; ++bit3) {
#pragma unroll
      for (u32 k3 = 0; k3 < 2; ++k3) {
        const u32 even = (t & bit3) ^ (t >> 1 & n >> 1 & 1) ^ (k3 & n >> 2), odd = even ^ (n & 1);
        b[bit3][k3] = kOnes ^ even << 15 ^ odd << 31;
      }
    }
  }
  // Columns 64 out to 64 out + 63 of the result, times sqrt(columns that are mixed).
  DEV void rotate(Out& y, const Words& x, i32 out) const {
#pragma unroll
    for (i32 w = 0; w < 4; ++w) {
#pragma unroll
      for (i32 bit3 = 0; bit3 < 2; ++bit3) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) y[w][bit3][i] = 0.0f;
#pragma unroll
        for (i32 j = 0; j < pieces; j += 2) {
          const u32 a[4] = {x[0][j][w], x[1][j][w], x[0][j + 1][w], x[1][j + 1][w]};
          const i32 both = j / 2 & out;  // bits 6 and 7
          const u32 flip = ((both ^ both >> 1) & 1) == 0 ? 0 : 0x80008000u;
          mma_16816(Format{}, y[w][bit3], a, b[bit3][0] ^ flip, b[bit3][1] ^ flip);
        }
      }
    }
#pragma unroll
    for (i32 step = 1; step < 4; step *= 2) {
#pragma unroll
      for (i32 w = 0; w < 4; ++w) {
        if ((w & step) != 0) continue;
#pragma unroll
        for (i32 i = 0; i < 8; ++i) butterfly(y[w][i / 4][i % 4], y[w | step][i / 4][i % 4]);
      }
    }
  }
  DEV static void butterfly(float& first, float& second) {
    const float sum = first + second;
    second = first - second, first = sum;
  }
};

}  // namespace onepass
