// The end of a tile on its way out.
#pragma once
#include "cuda/attention/epilogue.cuh"
#include "cuda/sm90/forward/tile.cuh"
#include "cuda/sm90/store_rows.cuh"

namespace onepass::sm90 {

// A warp's sixteen rows, from `first` on: no barrier beyond the warp.
DEV void store_output(const SharedMemory& memory, u32 warp, const TensorMap* out, const ForwardParams& p,
                      const WorkTile& tile, i32 first, float (&o)[kOutN / 2], const FinalRows& final,
                      FallbackRows& fallback) {
  const u32 own_block = kVGroups == 1 ? 0 : warp / kGroupWarps % kVGroups * kOutBlocks;  // this warpgroup's first
  normalize_rows(p, tile, first, o, final, fallback,
                 tile.number * static_cast<i32>(kGroupWarps * kGroups) + static_cast<i32>(warp));
  // A TMA store writes sixteen rows: packed, they must lie within the sequence.
  if (forward_features.output == ScalarType::f32 || (features.packed && first + 16 > tile.seq_q)) {
    store_rows(p, tile, FragmentRows::from(first), o,
               [&](i32 j, u32 quad) { return static_cast<i32>(own_block * kBlockColumns) + column_of(j, quad); });
    return;
  }
  store_rows_by_tma<kLayout.staging_blocks, (kVGroups > 1)>(memory.staging(warp), *out, o, own_block, tile, first);
}

}  // namespace onepass::sm90
