// The end of a tile on its way out: registers -> shared memory -> TMA.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/attention/finish.cuh"
#include "cuda/sm90/forward_tile.cuh"

namespace onepass::sm90 {

DEV void finish(u32 sm, u32 group, const TensorMap* out, const ForwardParams& p, const TileWork& x,
                const Scores& scores, float (&o)[kOutN / 2], const LaneRows& sums, Redo& redo) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const i32 first = x.row + static_cast<i32>(group) * 64;
  close_rows(p, x, scores, o, sums, redo, (x.number * static_cast<i32>(kGroups) + static_cast<i32>(group)) * 4 + warp);
  // A TMA store writes 64 rows: packed, they must lie within the sequence.
  if (features.output == Type::f32 || (features.packed && first + 64 > x.seq_q)) {
    store_rows(p, x, scores.rows, o);
    return;
  }
  // Swizzled blocks of 64 columns, as Q came; the store clips rows and columns past the end.
  const u32 stage = sm + kLayout.stage + group * kLayout.stage_bytes;
#pragma unroll
  for (u32 c0 = 0; c0 < kVBlocks; c0 += kLayout.stage_blocks) {
    if (warp == 0 && lane == 0) tma_store_wait_read();  // the previous store has left the stage
    bar_sync(4 + group, 128);
#pragma unroll
    for (u32 e = 0; e < static_cast<u32>(kLayout.stage_blocks) * 4; ++e) {  // 16 columns: accumulators 8 j .. 8 j + 7
      const u32 at = 8 * (c0 * 4 + e);
      if (at >= kOutN / 2) break;
      const float* a = o + at;
      stmatrix4(swizzled(stage + e / 4 * 8192, warp * 16 + lane % 16, e % 4 * 2 + lane / 16), Element::pack(a[0], a[1]),
                Element::pack(a[2], a[3]), Element::pack(a[4], a[5]), Element::pack(a[6], a[7]));
    }
    async_proxy_fence();
    bar_sync(4 + group, 128);
    if (warp == 0 && lane == 0) {
#pragma unroll
      for (u32 c = 0; c < static_cast<u32>(kLayout.stage_blocks); ++c) {
        if (c0 + c < kVBlocks) tma_store(out, stage + c * 8192, (c0 + c) * 64, x.q_begin + first, x.head, x.map_batch);
      }
      tma_store_commit();
    }
  }
}

}  // namespace onepass::sm90
