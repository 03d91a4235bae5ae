// The order of dQ's sums: that of accumulators.
#pragma once
#include "cuda/attention/backward/dq_sums.cuh"

#include "cuda/attention/backward/backward.hpp"

namespace onepass {

// The place of rows `row` .. `row` + 15 of a block and columns 8 n .. 8 n + 7: a warp's 512 bytes (lane_sum).
DEV i32 sum_tile(i32 row, i32 n) { return (row / 16 * (backward_shape.sum_columns / 8) + n) * 128; }

}  // namespace onepass
