// The end of a tile on its way out: registers -> shared memory -> TMA.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/attention/epilogue.cuh"
#include "cuda/sm90/forward/tile.cuh"

namespace onepass::sm90 {

// The type of the elements that TMA stores.
using Staged =
    ElementOf<forward_features.output == ScalarType::f32 ? ScalarType::bf16 : forward_features.output>::Format;

// A warp's sixteen rows, from `first` on: no barrier beyond the warp.
DEV void store_output(const SharedMemory& memory, u32 warp, const TensorMap* out, const ForwardParams& p,
                      const WorkTile& tile, i32 first, float (&o)[kOutN / 2], const FinalRows& final,
                      FallbackRows& fallback) {
  const u32 lane = threadIdx.x % 32;
  const u32 own_block = kVGroups == 1 ? 0 : warp / kGroupWarps % kVGroups * kOutBlocks;  // this warpgroup's first
  normalize_rows(p, tile, first, o, final, fallback,
                 tile.number * static_cast<i32>(kGroupWarps * kGroups) + static_cast<i32>(warp));
  // A TMA store writes sixteen rows: packed, they must lie within the sequence.
  if (forward_features.output == ScalarType::f32 || (features.packed && first + 16 > tile.seq_q)) {
    store_rows(p, tile, FragmentRows::from(first), o,
               [&](i32 j, u32 quad) { return static_cast<i32>(own_block * kBlockColumns) + column_of(j, quad); });
    return;
  }
  // Swizzled blocks of 64 columns, as Q came; the store clips rows and columns past the end.
  constexpr u32 kBlockBytes = 16 * kBlockColumnBytes, kBlocks = kLayout.staging_blocks;
  const u32 stage = memory.staging(warp);
#pragma unroll
  for (u32 c0 = 0; c0 < kOutBlocks; c0 += kBlocks) {
    if (lane == 0) tma_store_wait_read();  // the previous store has left the stage
    __syncwarp();
#pragma unroll
    for (u32 e = 0; e < kBlocks * 4; ++e) {  // 16 columns: accumulators 8 j .. 8 j + 7
      const u32 at = 8 * (c0 * 4 + e);
      if (at >= kOutN / 2) break;
      const float* a = o + at;
      stmatrix4(swizzled(stage + e / 4 * kBlockBytes, lane % 16, e % 4 * 2 + lane / 16), Staged::pack(a[0], a[1]),
                Staged::pack(a[2], a[3]), Staged::pack(a[4], a[5]), Staged::pack(a[6], a[7]));
    }
    async_proxy_fence();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (u32 c = 0; c < kBlocks; ++c) {
        const u32 column = (own_block + c0 + c) * kBlockColumns;
        if (c0 + c < kOutBlocks && (kVGroups == 1 || column < features.dim_v))
          tma_store(out, stage + c * kBlockBytes, column, tile.q_begin + first, tile.head, tile.map_batch);
      }
      tma_store_commit();
    }
  }
}

}  // namespace onepass::sm90
