// Where dQ's sums stand, for the kernel that converts them (attention/backward/post.cuh).
#pragma once
#include "cuda/device/types.cuh"

#include "cuda/sm90/backward/sums.hpp"

namespace onepass {

// The index of the tile of rows `row` .. `row` + 15 of a block and columns 8 n .. 8 n + 7.
DEV constexpr i32 sum_tile(i32 row, i32 n) {
  constexpr i32 kFirst = sm90::dq_columns(features.dim_qk, backward_shape.block_q, 0) / 8,
                kSecond = sm90::dq_columns(features.dim_qk, backward_shape.block_q, 1) / 8;
  constexpr bool kByRows = backward_shape.block_q == 128;
  const bool group = kByRows ? row >= 64 : n >= kFirst;
  const i32 warp = row % 64 / 16, column = group && !kByRows ? n - kFirst : n;
  return ((group ? 4 * kFirst : 0) + warp * (group ? kSecond : kFirst) + column) * 128;
}

}  // namespace onepass
