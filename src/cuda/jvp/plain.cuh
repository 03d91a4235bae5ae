// Forward mode without tensor cores: each warp computes one row at a time. It accepts every problem and every layout.
#pragma once
#include "cuda/jvp/row.cuh"

extern "C" __global__ void __launch_bounds__(32 * onepass::kJvpPlainWarps)
    attention_jvp_plain(const __grid_constant__ onepass::JvpParams p) {
  using namespace onepass;
  const RowsOuter<kJvpPlainRows, 32> tiles{p};
  const WorkTile x = tiles.tile(static_cast<i32>(blockIdx.x));
  if (!x.exists()) return;  // packed sequences have at most as many tiles as there are CTAs
  HeadScores scores{p};
  scores.open(x);
#pragma unroll 1
  for (i32 row = x.row + static_cast<i32>(threadIdx.x / 32); row < min(x.row + kJvpPlainRows, x.seq_q);
       row += kJvpPlainWarps)
    cuda::jvp::compute_row(p, x, scores, row);
}
