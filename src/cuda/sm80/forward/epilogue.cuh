// The end of a tile on its way out: registers -> shared memory -> 16-byte stores.
#pragma once
#include "cuda/attention/epilogue.cuh"
#include "cuda/sm80/forward/products.cuh"

namespace onepass::sm80 {

// Not in tile.cuh: the products include that in front of the user's score_mod, and scores come after it.
using Scores = TileScores<config.column_groups>;

template <class Format>
DEV void stage_pair(u32 to, float a, float b) {
  if constexpr (Format::kPacked == 2)
    store_word(to, static_cast<i32>(Format::pack(a, b)));
  else
    store_pair(to, a, b);
}

// This warp's rows and columns of O. The Q tile's memory is the stage: all reads of Q are done. A group of columns has
// two chunks.
DEV void store_staged(u32 sm, const ForwardParams& p, const WorkTile& x, const float (&o)[kRowTiles][kOutSums]) {
  constexpr u32 kPitch = kLayout.v_pitch;
  constexpr i32 kInChunk = 16 / kElementBytes,
                kChunks = round_up(features.dim_v, kInChunk) / kInChunk;  // staged: whole
  constexpr i32 kOwnChunks = kShare == 1 ? kChunks : kOutSums / kInChunk * 2;
  const u32 lane = opaque_thread() % 32, own_first = own_rows();
  const u32 stage = sm + kLayout.q + own_first * kPitch;
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 2) {
      const u32 row = 16 * r + 8 * (j >> 1 & 1) + lane / 4;
      const u32 byte = lane % 4 * 2 * kElementBytes, chunk = own_column(j / 4 * 4, 0) / kInChunk + byte / 16;
      stage_pair<Element>(stage + swizzled(row, chunk, kPitch) + byte % 16, o[r][j], o[r][j + 1]);
    }
  }
  __syncwarp();
  const i32 first = x.row + static_cast<i32>(own_first);
#pragma unroll 4
  for (i32 at = lane; at < kWarpRows * kOwnChunks; at += 32) {
    const i32 row = at / kOwnChunks, own = at % kOwnChunks;
    const i32 chunk = kShare == 1 ? own : (own / 2 * kShare + static_cast<i32>(own_part())) * 2 + own % 2;
    if (first + row >= x.seq_q) break;
    if (kShare > 1 && chunk >= kChunks) continue;
    u32 w[4];
    load_four(stage + swizzled(row, chunk, kPitch), w[0], w[1], w[2], w[3]);
    void* const to = static_cast<char*>(p.out) + kElementBytes * (out_offset(p, x, first + row) + kInChunk * chunk);
    store_global(to, w);
  }
}

DEV void store_output(u32 sm, const ForwardParams& p, const WorkTile& x, const Scores (&scores)[kRowTiles],
                      float (&o)[kRowTiles][kOutSums], const LaneRows (&sums)[kRowTiles], FallbackRows& fallback) {
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const i32 place = x.number * (config.warps * kRowTiles) + static_cast<i32>(opaque_thread() / 32) * kRowTiles + r;
    const FinalRows end = finalize_rows(p, x, sums[r]);
    normalize_rows(p, x, scores[r].first_row(), o[r], end, fallback, place);
    write_lses(p, x, scores[r].rows, end.lse);
    write_maxima(p, x, scores[r].rows, end);
    write_entropies(p, x, scores[r].rows, end);
    if constexpr (!config.staged)
      store_rows(p, x, scores[r].rows, o[r], [](i32 j, u32 quad) { return own_column(j, quad); });
  }
  if constexpr (config.staged) store_staged(sm, p, x, o);
}

}  // namespace onepass::sm80
