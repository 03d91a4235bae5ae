// Rows of a result on their way out: registers -> shared memory -> TMA.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/attention/forward.hpp"
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/device/formats.cuh"
#include "cuda/sm90/blocks.hpp"

namespace onepass::sm90 {

// The type of the elements that TMA stores.
using Staged =
    ElementOf<forward_features.output == ScalarType::f32 ? ScalarType::bf16 : forward_features.output>::Format;

// By one warp: sixteen rows of the tile's sequence, from `first` on, and N columns from block `first_block` of 64 on,
// as swizzled blocks through `stage`, kBlocks at a time. The store clips rows and columns past the end. kPart: whole
// blocks may lie there.
template <u32 kBlocks, bool kPart = false, int N>
DEV void store_rows_by_tma(u32 stage, const TensorMap& map, const float (&o)[N], u32 first_block, const WorkTile& tile,
                           i32 first) {
  constexpr u32 kBlockBytes = 16 * kBlockColumnBytes, kOfRow = column_blocks(2 * N);
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 c0 = 0; c0 < kOfRow; c0 += kBlocks) {
    if (lane == 0) tma_store_wait_read();  // the previous store has left the stage
    __syncwarp();
#pragma unroll
    for (u32 e = 0; e < kBlocks * 4; ++e) {  // 16 columns: accumulators 8 j .. 8 j + 7
      const u32 at = 8 * (c0 * 4 + e);
      if (at >= N) break;
      const float* a = o + at;
      stmatrix4(swizzled(stage + e / 4 * kBlockBytes, lane % 16, e % 4 * 2 + lane / 16), Staged::pack(a[0], a[1]),
                Staged::pack(a[2], a[3]), Staged::pack(a[4], a[5]), Staged::pack(a[6], a[7]));
    }
    async_proxy_fence();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (u32 c = 0; c < kBlocks; ++c) {
        const u32 column = (first_block + c0 + c) * kBlockColumns;
        if (c0 + c < kOfRow && (!kPart || column < features.dim_v))
          tma_store(&map, stage + c * kBlockBytes, column, tile.q_begin + first, tile.head, tile.map_batch);
      }
      tma_store_commit();
    }
  }
}

}  // namespace onepass::sm90
