// Prompts with one result per row: blocks of rows, of which a warp has sixteen with all of their keys.
//
// Kernels for few rows share a tile of keys among warps (shared_tiles.cuh). Here a warp has all of its parts. A row's
// steps, products and sums are the same, so its bits are. The sums of the pieces so far wait in shared memory.
#pragma once
#include "cuda/decode/one_result/sums.cuh"

namespace onepass::decode {

// A warp's rows.
template <class Rows>
struct WarpRows : BlockSums {
  Ring& ring;

  // A piece.
  DEV void attend(const Segment& segment, float (&o)[1][kOutSums], Rows& rows) const {
    const Group& g = segment.group;
    const QueryOperand query{sm + kLayout.q};
    const i32 row = first_own_row();
    LanePlaces places;
    places.open(p, g, row);
    const LaneScores scores{p, g, places};
    const auto unit = softmax_unit(p);
    const Band32 band = band_of(p, g.seq_q, g.seq_k);
    const i32 seen_from = band.keys_of(PackedRow::of(p, g, row).token).lo,
              seen_to = band.keys_of(PackedRow::of(p, g, row + 15).token).hi;
#pragma unroll 1
    for (i32 tile = segment.tile(); tile < segment.end_tile(); ++tile) {
      const Ring::Pair at = ring.take_pair();
      const i32 first = tile * kBlockN;
      if (first >= seen_to || first + kBlockN <= seen_from) continue;  // no row of the warp sees them
      float s[1][kBlockN / 2];
      Weights<kBlockN> w[1];
      typename Rows::TileSums sums;
      bool keeps[2];
      multiply_rows<kQkDepth, kLayout.k_pitch>(s, at.k, query);
      scores.apply(s[0], first);
      rows.see(s[0], unit.unit);
      rows.weigh(s[0], w[0], sums, keeps, unit);
      if (__all_sync(0xffffffffu, keeps[0] && keeps[1]))
        rows.take(sums);
      else
        take_exactly(s[0], w[0], o[0], rows, keeps, unit);
      multiply_columns<kBlockN, kLayout.v_pitch>(o, w, at.v);
    }
  }
};

// All of a CTA's segments.
template <class Rows>
DEV void take_blocks(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end, Ring& ring) {
  const WarpRows<Rows> warp{{sm, p}, ring};
#pragma unroll 1
  while (segment.steps != 0) {
    float o[1][kOutSums];
    Rows rows = {};
    clear(o);
    clear_flags(sm);
    const u32 stored = sm + kLayout.segments + kStoredBytes * own_warp();  // it does not occupy registers meanwhile
    if (opaque_thread() % 32 == 0) segment.store(stored);
    __syncthreads();  // Q is here
    warp.attend(segment, o, rows);
    segment = Segment::load(stored);
    const Group& g = segment.group;
    const bool over = segment.step + segment.steps == g.end();
    warp.join_piece(segment.step == g.step, rows, o[0], over);
    if (over) {
      warp.put(g, o[0]);
      __syncthreads();
      run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
    }
    __syncwarp();  // the warp has read `stored`
    segment = line.next(segment, end);
    if (segment.steps == 0) break;
    if (over) {
      __syncthreads();
      copy_query<true>(sm, p, segment.group);
    }
  }
}

}  // namespace onepass::decode
