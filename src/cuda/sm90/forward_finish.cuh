// The end of a tile: sinks, LSE, the normalised O on its way out.
#pragma once
#include "cuda/sm90/forward_tile.cuh"

namespace onepass::sm90 {

DEV void write_lse(const ForwardParams& p, const TileWork& x, i32 row, float lse) {
  if (p.lse && row < x.seq_q) {
    p.lse[x.map_batch * p.lse_stride[0] + x.head * p.lse_stride[1] +
          static_cast<i64>(x.q_begin + row) * p.lse_stride[2]] = lse;
  }
}
DEV i64 out_offset(const ForwardParams& p, const TileWork& x, i32 row) {
  return x.map_batch * p.out_stride[0] + x.head * p.out_stride[1] + static_cast<i64>(x.q_begin + row) * p.out_stride[2];
}
DEV void write_out(const ForwardParams& p, i64 at, float value) {
  if constexpr (config.out_f32)
    static_cast<float*>(p.out)[at] = value;
  else
    static_cast<u16*>(p.out)[at] = static_cast<u16>(Element::pack(value, 0.0f));
}

// A tile that sees no key: O = 0, LSE = -inf. Called by one whole warp.
DEV void write_empty(const ForwardParams& p, const TileWork& x) {
  const i32 lane = threadIdx.x % 32;
  for (i32 r = 0; r < static_cast<i32>(kBlockM) && x.row + r < x.seq_q; ++r) {
    for (i32 d = lane; d < config.dim_v; d += 32) write_out(p, out_offset(p, x, x.row + r) + d, 0.0f);
    if (lane == 0) write_lse(p, x, x.row + r, kNegInf);
  }
}

// Rows whose result is not finite, remembered until the end of the warp's work: a chain through the workspace.
struct Redo {
  i32 last = -1;
  DEV void push(const ForwardParams& p, const TileWork& x, i32 first_row) {  // sixteen rows of one warp
    const i32 lane = threadIdx.x % 32;
    i32 at = 0;
    if (lane == 0) {
      at = static_cast<i32>(atomicAdd(p.counters + 2, 1u));
      p.redo[at] = {x.batch, x.head, first_row, last};
    }
    last = __shfl_sync(0xffffffffu, at, 0);
  }
};

DEV void finish(u32 sm, u32 group, const TensorMap* out, const ForwardParams& p, const TileWork& x,
                const TileScores& scores, float (&o)[kOutN / 2], LaneRows& sums, Redo& redo) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, quad = lane % 4;
  const FragmentRows& rows = scores.rows;
  const i32 first = x.row + static_cast<i32>(group) * 64;
  float inv[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    RowState<float> state = {sums.state[i].m, quad_sum(sums.state[i].l)};
    const float rounding = config.out_f32 ? quad_sum(sums.norm[i]) - state.l : 0.0f;  // see LaneRows
    float alpha = 1.0f;
    if constexpr (config.sinks) {
      const Merged<float> joined = join_sink(state, static_cast<float>(kLog2e) * p.sinks[x.head * p.sink_stride]);
      state = joined.state;
      alpha = joined.alpha_a;
    }
    const Final<float> end = finalize(state);
    inv[i] = config.out_f32 && end.inv_l != 0.0f ? alpha * rcp(state.l + alpha * rounding) : alpha * end.inv_l;
    if (quad == 0) write_lse(p, x, rows.row[i], end.lse);
  }
  float odd = 0.0f;  // stays 0 while everything is finite
#pragma unroll
  for (u32 j = 0; j < kOutN / 2; ++j) {
    o[j] *= inv[j >> 1 & 1];
    odd += o[j] * 0.0f;
  }
  if (__any_sync(0xffffffffu, odd != 0.0f)) redo.push(p, x, first + static_cast<i32>(warp) * 16);
  // A TMA store writes 64 rows: packed, they must lie within the sequence.
  if (!config.out_f32 && (!config.packed || first + 64 <= x.seq_q)) {
    // Registers -> shared memory (swizzled blocks, as Q came) -> TMA store, which clips rows and columns past the end.
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
        stmatrix4(swizzled(stage + e / 4 * 8192, warp * 16 + lane % 16, e % 4 * 2 + lane / 16),
                  Element::pack(a[0], a[1]), Element::pack(a[2], a[3]), Element::pack(a[4], a[5]),
                  Element::pack(a[6], a[7]));
      }
      async_proxy_fence();
      bar_sync(4 + group, 128);
      if (warp == 0 && lane == 0) {
#pragma unroll
        for (u32 c = 0; c < static_cast<u32>(kLayout.stage_blocks); ++c) {
          if (c0 + c < kVBlocks)
            tma_store(out, stage + c * 8192, (c0 + c) * 64, x.q_begin + first, x.head, x.map_batch);
        }
        tma_store_commit();
      }
    }
  } else {
#pragma unroll
    for (u32 j = 0; j < kOutN / 2; ++j) {
      const i32 r = rows.row[j >> 1 & 1], d = column_of(j, quad);
      if (r < x.seq_q && d < config.dim_v) write_out(p, out_offset(p, x, r) + d, o[j]);
    }
  }
}

}  // namespace onepass::sm90
