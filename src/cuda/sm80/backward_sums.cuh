// The order of dQ's sums: as accumulators stand.
#pragma once
#include "cuda/device/types.cuh"

#include "cuda/attention/backward.hpp"

namespace onepass {

// Sixteen rows x eight columns after each other, of each the four floats of lane 0, of lane 1, ...: 16 bytes a lane,
// which one instruction adds (sm_90), and whole 128-byte lines of a warp.
struct SumPlace {
  i32 row, column;
};
DEV SumPlace sum_place(i32 at) {
  constexpr i32 kAcross = backward_shape.sum_columns / 8;
  const i32 tile = at / 128, lane = at / 4 % 32, i = at % 4;
  return {tile / kAcross * 16 + i / 2 * 8 + lane / 4, tile % kAcross * 8 + lane % 4 * 2 + i % 2};
}
// Of a warp's sixteen rows and columns 8 n .. 8 n + 7: where its first lane's are.
DEV i32 sum_tile(i32 row, i32 n) { return (row / 16 * (backward_shape.sum_columns / 8) + n) * 128; }

}  // namespace onepass
