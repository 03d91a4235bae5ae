// The end of a tile: its results on their way to memory.
#pragma once
#include "cuda/jvp/products.cuh"
#include "cuda/jvp/results.cuh"

namespace onepass::cuda::jvp {

using Scores = JvpScores<(features.dim_v <= 64)>;

template <class Format>
DEV void stage_pair(u32 to, float a, float b) {
  if constexpr (Format::kPacked == 2)
    store_word(to, static_cast<i32>(Format::pack(a, b)));
  else
    store_pair(to, a, b);
}

// A fragment's row to global memory, through this warp's rows of the Q tile's memory: all reads of Q are done.
DEV void store_staged(u32 stage, void* to, const long long (&stride)[3], const WorkTile& x,
                      const float (&o)[kRowTiles][kOutSums]) {
  constexpr u32 kPitch = kLayout.v_pitch;
  constexpr i32 kInChunk = 16 / kElementBytes,
                kChunks = round_up(features.dim_v, kInChunk) / kInChunk;  // staged: whole
  constexpr i32 kOwnChunks = kShare == 1 ? kChunks : kOutSums / kInChunk * 2;
  const u32 lane = opaque_thread() % 32, own_first = sm80::own_rows();
  stage += own_first * kPitch;
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 2) {
      const u32 row = 16 * r + 8 * (j >> 1 & 1) + lane / 4;
      const u32 byte = lane % 4 * 2 * kElementBytes, chunk = sm80::own_column(j / 4 * 4, 0) / kInChunk + byte / 16;
      stage_pair<Element>(stage + swizzled(row, chunk, kPitch) + byte % 16, o[r][j], o[r][j + 1]);
    }
  }
  __syncwarp();
  const i32 first = x.row + static_cast<i32>(own_first);
#pragma unroll 4
  for (i32 at = static_cast<i32>(lane); at < kWarpRows * kOwnChunks; at += 32) {
    const i32 row = at / kOwnChunks, own = at % kOwnChunks;
    const i32 chunk = kShare == 1 ? own : (own / 2 * kShare + static_cast<i32>(sm80::own_part())) * 2 + own % 2;
    if (first + row >= x.seq_q) break;
    if (kShare > 1 && chunk >= kChunks) continue;
    u32 w[4];
    load_four(stage + swizzled(row, chunk, kPitch), w[0], w[1], w[2], w[3]);
    store_global(static_cast<char*>(to) + kElementBytes * (row_place(stride, x, first + row) + kInChunk * chunk), w);
  }
}

DEV void store_results(u32 sm, const JvpParams& p, const WorkTile& x, const Scores (&scores)[kRowTiles],
                       float (&o)[kRowTiles][kOutSums], float (&t)[kRowTiles][kOutSums],
                       const JvpRows (&rows)[kRowTiles]) {
  u32 wrong[kRowTiles];
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const JvpFinal end = finalize_both(p, x, rows[r]);
    wrong[r] = normalize_both(o[r], t[r], end);
    const FragmentRows& own = scores[r].rows;
    write_both_lses(p, x, own, end);
    if constexpr (!config.staged) {
      const auto column = [](i32 j, u32 quad) { return sm80::own_column(j, quad); };
      store_elements(p.out, p.out_stride, x, own, o[r], column);
      store_elements(p.tout, p.tout_stride, x, own, t[r], column);
    }
  }
  if constexpr (config.staged) {
    store_staged(sm + kLayout.q, p.out, p.out_stride, x, o);
    store_staged(sm + kLayout.q + kLayout.q_bytes, p.tout, p.tout_stride, x, t);
  }
  // Earlier stores of these rows stand before the later ones.
  if constexpr (kShare > 1)
    __syncthreads();
  else
    __syncwarp();
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    if (__any_sync(0xffffffffu, wrong[r] != 0)) compute_again(p, x, scores[r], scores[r].first_row(), wrong[r]);
  }
}

}  // namespace onepass::cuda::jvp
