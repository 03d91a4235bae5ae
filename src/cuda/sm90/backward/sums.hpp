// How the two consumer warpgroups share a block's dQ, and how its sums lie in global memory: one definition for the
// host and the device half.
#pragma once
#include "cuda/attention/backward/backward.hpp"
#include "cuda/sm90/blocks.hpp"

namespace onepass::sm90 {

// 64 rows each where a block has 128 of them, else columns. How many columns of 64 rows a warpgroup computes:
ONEPASS_HD constexpr int dq_columns(int dim_qk, int block_q, int group) {
  const int blocks = column_blocks(dim_qk);
  if (block_q == 128) return round_up(dim_qk, 16);
  if (blocks == 1) return kBlockColumns / 2;
  const int first = (blocks + 1) / 2 * kBlockColumns;
  return group == 0 ? first : round_up(dim_qk, 16) - first;
}
// In the order of the accumulators: [warpgroup][warp][8 columns][lane][4].
ONEPASS_HD constexpr int dq_block_floats(int dim_qk, int block_q) {
  return 64 * (dq_columns(dim_qk, block_q, 0) + dq_columns(dim_qk, block_q, 1));
}

}  // namespace onepass::sm90
