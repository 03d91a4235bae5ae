// Sums of rows weighted by a tile of pairs, in a CTA's registers.
#pragma once
#include "cuda/backward_plain/tile.cuh"

namespace onepass::cuda::backward_plain {

// A thread's sums: rows kPer t .. kPer t + kPer - 1, columns 4 u .. 4 u + 3 of every 64.
template <i32 dim>
struct Sums {
  static constexpr i32 kParts = ceil_div(dim, kPlainColumns);
  float of[kParts][kPer][4];

  DEV void clear() {
#pragma unroll
    for (i32 part = 0; part < kParts; ++part) {
#pragma unroll
      for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
        for (i32 e = 0; e < 4; ++e) of[part][i][e] = 0.0f;
      }
    }
  }

  // += W X + W' X': the tiles of pairs, whose rows are x's, times x and other. Where something is not finite, a hidden
  // pair, whose weights are +0, adds nothing. Visible weights are never +0.
  template <ScalarType type, bool kBoth>
  DEV void add(u32 sm, const Rows& x, const Rows& other) {
    constexpr i32 kPitch = kLayout.column_pitch;
    const u32 of_x = sm + kLayout.operands, of_other = of_x + kBlock * kPitch;
#pragma unroll
    for (i32 part = 0; part < kParts; ++part) {
      Copy<type, dim, kPlainColumns> from_x, from_other;
      from_x.load(x, part * kPlainColumns);
      if constexpr (kBoth) from_other.load(other, part * kPlainColumns);
      __syncthreads();  // the pairs are there, and all reads of the last columns are done
      float probe = from_x.store(of_x, kPitch);
      if constexpr (kBoth) probe += from_other.store(of_other, kPitch);
      if (__syncthreads_or(!is_finite(probe)))
        add_part<true, kBoth>(sm, of[part], of_x, of_other);
      else
        add_part<false, kBoth>(sm, of[part], of_x, of_other);
    }
  }

  template <bool kCareful, bool kBoth>
  static DEV void add_part(u32 sm, float (&sum)[kPer][4], u32 of_x, u32 of_other) {
    const u32 pairs = sm + thread_row() * (4 * kPer), columns = thread_key() * 16;
#pragma unroll(kCareful ? 1 : 4)
    for (i32 n = 0; n < kBlock; ++n) {
      float w[kPer], x[4], v[kPer], y[4];
      load_floats(w, pairs + n * kLayout.pair_pitch);
      load_floats(x, of_x + n * kLayout.column_pitch + columns);
      if constexpr (kBoth) {
        load_floats(v, pairs + kLayout.pair_bytes + n * kLayout.pair_pitch);
        load_floats(y, of_other + n * kLayout.column_pitch + columns);
      }
#pragma unroll
      for (i32 i = 0; i < kPer; ++i) {
        if (kCareful && __float_as_uint(w[i]) == 0) continue;
#pragma unroll
        for (i32 e = 0; e < 4; ++e) {
          sum[i][e] = fmaf(w[i], x[e], sum[i][e]);
          if constexpr (kBoth) sum[i][e] = fmaf(v[i], y[e], sum[i][e]);
        }
      }
    }
  }

  // To a gradient's rows, rounded.
  DEV void write(void* to, const Rows& rows) const {
    using Format = ElementOf<backward_features.gradients>::Format;
#pragma unroll
    for (i32 i = 0; i < kPer; ++i) {
      const i32 row = thread_row() * kPer + i;
      if (row >= rows.count) continue;
      auto* const at = static_cast<Format::Raw*>(to) + rows.at + row * rows.stride;
#pragma unroll
      for (i32 part = 0; part < kParts; ++part) {
#pragma unroll
        for (i32 e = 0; e < 4; ++e) {
          const i32 column = part * kPlainColumns + thread_key() * 4 + e;
          if (column < dim) at[column] = Format::round(of[part][i][e]);
        }
      }
    }
  }
};

}  // namespace onepass::cuda::backward_plain
