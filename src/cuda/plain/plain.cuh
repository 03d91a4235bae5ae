// Attention forward without tensor cores: each warp computes one row at a time, in two passes over the keys it sees.
// It accepts every problem and every layout. It is the last row of CUDA's list: a call that the tuned kernels refuse
// takes it.
#pragma once
#include "cuda/attention/fallback/row.cuh"
#include "cuda/plain/config.hpp"

namespace onepass {

// largest: the row's largest score.
DEV bool is_served(const PlainParams& p, float largest) {
  return largest == kNegInf || fabsf(largest - p.unified_max) <= kUnifiedReach;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(32 * onepass::kPlainWarps)
    attention_plain(const __grid_constant__ onepass::PlainParams p) {
  using namespace onepass;
  const RowsOuter<kPlainRows, kPlainKeys> tiles{p};
  const WorkTile x = tiles.tile(static_cast<i32>(blockIdx.x));
  if (!x.exists()) return;  // packed sequences have at most as many tiles as there are CTAs
  HeadScores scores{p};
  scores.open(x);
  const i32 warp = static_cast<i32>(threadIdx.x / 32);
#pragma unroll 1
  for (i32 row = x.row + warp; row < min(x.row + kPlainRows, x.seq_q); row += kPlainWarps) {
    const bool served = is_served(p, fallback_row(p, x, scores, row));
    if (threadIdx.x % 32 == 0) p.recomputed.set(x.map_batch, x.head, x.q_begin + row, !served);
  }
}
