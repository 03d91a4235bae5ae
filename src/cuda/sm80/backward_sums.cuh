// The order of dQ's sums: as accumulators stand.
#pragma once
#include "cuda/device/reduce.cuh"

#include "cuda/attention/backward.hpp"

namespace onepass {

// Sixteen rows x eight columns after each other: a warp's 512 bytes (lane_sum).
struct SumPlace {
  i32 row, column;
};
DEV SumPlace sum_place(i32 at) {
  constexpr i32 kAcross = backward_shape.sum_columns / 8;
  const i32 tile = at / 128, lane = kAddsFour ? at / 4 % 32 : at % 32, i = kAddsFour ? at % 4 : at / 32 % 4;
  return {tile / kAcross * 16 + i / 2 * 8 + lane / 4, tile % kAcross * 8 + lane % 4 * 2 + i % 2};
}
// Of rows `row` .. `row` + 15 of a block and columns 8 n .. 8 n + 7.
DEV i32 sum_tile(i32 row, i32 n) { return (row / 16 * (backward_shape.sum_columns / 8) + n) * 128; }

}  // namespace onepass
