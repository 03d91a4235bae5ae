// The order of dQ's sums: as accumulators stand.
#pragma once
#include "cuda/device/reduce.cuh"

#include "cuda/attention/backward/backward.hpp"

namespace onepass {

// Sixteen rows x eight columns after each other: a warp's 512 bytes (lane_sum).
// Of rows `row` .. `row` + 15 of a block and columns 8 n .. 8 n + 7.
DEV i32 sum_tile(i32 row, i32 n) { return (row / 16 * (backward_shape.sum_columns / 8) + n) * 128; }

}  // namespace onepass
