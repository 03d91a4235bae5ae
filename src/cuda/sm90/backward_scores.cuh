// The scores of a transposed fragment: a lane holds keys g and g + 8 of its warp's sixteen and, of a block's rows,
// columns 8 j + 2 t and + 1.
#pragma once
#include "cuda/attention/score.cuh"
#include "cuda/sm90/backward_tile.cuh"

namespace onepass::sm90 {

struct KeyScores : HeadScores {
  i32 warp_key = 0;  // the warp's first, within its sequence

  DEV void open(const KeyTile& x, i32 key) {
    band = band_of(p, x.seq_q, x.seq_k);
    batch = x.batch;
    warp_key = key;
  }

  // Scores of the rows from `first` on that the band hides.
  template <int N>
  DEV void apply_band(float (&s)[N], i32 first) const {
    constexpr i32 kRows = 2 * N;
    if (warp_key >= band.keys_of(first + kRows - 1).lo && warp_key + 16 <= band.keys_of(first).hi) return;
    const u32 lane = opaque_thread() % 32, quad = lane % 4;
    const i32 key = warp_key + static_cast<i32>(lane / 4);
    i32 from[2], upto[2];  // the rows that see a key
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 at = key + 8 * i - band.shift;
      from[i] = key + 8 * i >= band.seq_k ? 0x7fffffff : features.bounded_right ? at - band.right : -0x7fffffff;
      upto[i] = at + band.left;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = j >> 1 & 1;
      const i32 row = first + column_of(j, quad);
      if (row < from[i] || (features.bounded_left && row > upto[i])) s[j] = kNegInf;
    }
  }
};

}  // namespace onepass::sm90
