// Prompts with one result per row: blocks of rows, of which a warp has sixteen with all of their keys.
//
// Kernels for few rows share a piece of keys among teams, in tiles of kSubN keys. Here a warp takes the parts of these
// teams one after the other, in tiles of kBlockN keys, and joins the states where theirs meet. A row's steps, products
// and sums are the same, so its bits are. The sums of the pieces so far wait in shared memory.
#pragma once
#include "cuda/decode/prompts/sums.cuh"

namespace onepass::decode {

// A warp's rows. A template, so that kernels without turns do not compile it.
template <i32 turns>
struct Turns : TurnSums {
  Ring& ring;

  // A piece: its turns, joined.
  DEV void attend(const Segment& segment, PieceSums& whole) const {
    const Group& g = segment.group;
    const QueryOperand query{sm + kLayout.q};
    const i32 row = first_own_row();
    LanePlaces places;
    places.open(p, g, row);
    const Band32 band = band_of(p, g.seq_q, g.seq_k);
    const i32 seen_from = band.keys_of(PackedRow::of(p, g, row).token).lo,
              seen_to = band.keys_of(PackedRow::of(p, g, row + 15).token).hi;
    begin_piece(whole);
#pragma unroll 1
    for (i32 turn = 0; turn < turns; ++turn) {
      float o[1][kOutSums];
      LaneRows rows = {};
      clear(o);
      bool fresh = true;
#pragma unroll 1
      for (i32 tile = segment.tile() + turn; tile < segment.end_tile(); tile += turns) {
        const Ring::Pair at = ring.take_pair();
#pragma unroll 1
        for (i32 from = 0; from < kBlockN; from += kStepN) {
          const i32 first = tile * kBlockN + from;
          if (first >= seen_to || first + kStepN <= seen_from) continue;  // no row of the warp sees them
          float s[1][kStepN / 2];
          multiply_rows<kQkDepth, kLayout.k_pitch>(s, at.k + from * kLayout.k_pitch, query);
          take_keys(s[0], o, rows, LaneScores{p, g, places}, first, at.v + from * kLayout.v_pitch, fresh);
          fresh = false;
        }
      }
      join_turn(rows, o[0], whole);
    }
  }

 private:
  DEV void take_keys(float (&s)[kStepN / 2], float (&o)[1][kOutSums], LaneRows& rows, const LaneScores& scores,
                     i32 first, u32 v, bool fresh) const {
    scores.apply(s, first);
    const auto unit = softmax_unit(p);
    Weights<kStepN> w[1];
    const auto step = [&](i32 i, bool exact) {
      softmax_by_row<Product, kRoundedSums>(part_of<kSubN / 2>(s, i), part_of<kSubWords>(w[0], i), o[0], rows, unit,
                                            scores.drop(first + i * kSubN), exact);
    };
    if (fresh) step(0, true);
    const auto all = [](bool x) { return __all_sync(0xffffffffu, x); };
    const bool lazy = fresh ? take_lazy_steps<true>(s, w[0], rows, unit, scores, first, all)
                            : take_lazy_steps<false>(s, w[0], rows, unit, scores, first, all);
    if (lazy) {
      multiply_columns<kStepN, kLayout.v_pitch>(o, w, v);
      return;
    }
#pragma unroll
    for (i32 i = 0; i < kSubs; ++i) {
      if (i != 0 || !fresh) step(i, false);
      multiply_columns<kSubN, kLayout.v_pitch>(o, part_of<1>(&part_of<kSubWords>(w[0], i), 0),
                                               v + i * kSubN * kLayout.v_pitch);
    }
  }
};

// All of a CTA's segments.
template <i32 turns>
DEV void take_turns(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end, Ring& ring) {
  if constexpr (turns > 1) {
    const Turns<turns> rows{{sm, p}, ring};
#pragma unroll 1
    while (segment.steps != 0) {
      PieceSums whole;
      clear_flags(sm);
      const u32 stored = sm + kLayout.segments + kStoredBytes * own_warp();  // it does not occupy registers meanwhile
      if (opaque_thread() % 32 == 0) segment.store(stored);
      __syncthreads();  // Q is here
      rows.attend(segment, whole);
      segment = Segment::load(stored);
      const Group& g = segment.group;
      const bool over = segment.step + segment.steps == g.end();
      float o[kOutSums];
      rows.take_piece(whole, o);
      rows.join_piece(segment, o, over);
      if (over) {
        rows.put(g, o);
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
}

}  // namespace onepass::decode
