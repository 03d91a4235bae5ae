// Rows that several warps share: each has every kShare-th group of columns of their sums.
#pragma once
#include "cuda/attention/fragment.cuh"
#include "cuda/mma/tile.cuh"

namespace onepass::sm80 {

using namespace mma;  // tiles in shared memory, copies into them and products of them

DEV u32 own_part() { return opaque_thread() / 32 % kShare; }              // of the warps that share rows
DEV u32 own_rows() { return opaque_thread() / 32 / kShare * kWarpRows; }  // this warp's first row within the tile

// Accumulators of this warp's part of `dim` columns.
constexpr i32 own_sums(i32 dim) { return ceil_div(dim / kGroupColumns, kShare) * (kGroupColumns / 2); }
// The column of the j-th of them.
DEV i32 own_column(i32 j, u32 quad) {
  constexpr i32 kOfGroup = kGroupColumns / 2;
  if constexpr (kShare == 1) return column_of(j, quad);
  const i32 group = j / kOfGroup * kShare + static_cast<i32>(own_part());
  return group * kGroupColumns + column_of(j % kOfGroup, quad);
}

}  // namespace onepass::sm80
