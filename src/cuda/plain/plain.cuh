// Attention forward without tensor cores: each warp computes one row at a time, in two passes over the keys it sees.
// It accepts every problem and every layout. It is the last row of CUDA's list: a call that the tuned kernels refuse
// takes it.
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/plain/config.hpp"

namespace onepass {

DEV void write_recomputed(const PlainParams& p, const WorkTile& x, i32 row, float largest) {
  if (!p.recomputed || threadIdx.x % 32 != 0) return;
  const bool served = largest == kNegInf || fabsf(largest - p.unified_max) <= kPlainReach;
  p.recomputed[x.map_batch * p.recomputed_stride[0] + x.head * p.recomputed_stride[1] +
               static_cast<i64>(x.q_begin + row) * p.recomputed_stride[2]] = !served;
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
  for (i32 row = x.row + warp; row < min(x.row + kPlainRows, x.seq_q); row += kPlainWarps)
    write_recomputed(p, x, row, fallback_row(p, x, scores, row));
}
