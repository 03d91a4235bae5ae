// Few rows with one result: the four warps that hold the same rows share each tile of keys. A warp computes the scores
// of its part of the tile, and some columns of O with the weights of all parts, which go through shared memory. So the
// keys of a row are one chain of steps, as they are for a prompt's rows, and a tile takes a fourth of a warp's time.
#pragma once
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/one_result/parted_rows.cuh"

namespace onepass::decode {

// The warps of the same rows, and what they tell each other. A tile's words are over when the next tile's are: two
// tiles have memory, so that one barrier a tile is enough.
template <class Rows>
struct SharingWarps {
  const u32 sm;
  u32 odd = 0;  // of the number of the tile
  static DEV void sync() {
    if constexpr (kWarps == kHalves)
      team_sync();
    else
      bar_sync(kSameRowsBarrier + static_cast<u32>(own_warp()) / kSameRows, 32 * kSameRows);
  }

  // Each lane's vote, and those of all lanes that hold the same row.
  DEV void vote(const bool (&keeps)[kRowTiles][2]) const {
    u32 of[4] = {~0u, ~0u, ~0u, ~0u};
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (i32 i = 0; i < 2; ++i) of[2 * r + i] = __ballot_sync(0xffffffffu, keeps[r][i]);
    }
    if (opaque_thread() % 32 == 0) store_four(votes(own_warp()), of[0], of[1], of[2], of[3]);
  }
  // False if a row needs an exact step.
  DEV bool all_keep(bool (&keeps)[kRowTiles][2]) const {
    u32 all[4] = {~0u, ~0u, ~0u, ~0u};
#pragma unroll
    for (i32 part = 0; part < kKeyParts; ++part) {
      u32 of[4];
      load_four(votes(own_warp() / kSameRows * kSameRows + part), of[0], of[1], of[2], of[3]);
#pragma unroll
      for (i32 i = 0; i < 2 * kRowTiles; ++i) all[i] &= of[i];
    }
    bool every = true;
    const u32 quad = 0xfu << (opaque_thread() % 32 / 4 * 4);
#pragma unroll
    for (i32 i = 0; i < 2 * kRowTiles; ++i) {
      keeps[i / 2][i % 2] = (all[i] & quad) == quad;
      every = every && all[i] == ~0u;
    }
    return every;
  }
  // Maxima of a part become those of the tile, behind a barrier.
  DEV void put_maxima(i32 row, const float (&part_max)[2]) const {
    if (opaque_thread() % 4 != 0) return;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) store_word(maximum(own_half(), row + 8 * i), __float_as_int(part_max[i]));
  }
  DEV void take_maxima(i32 row, float (&tile_max)[2]) const {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      tile_max[i] = kNegInf;
#pragma unroll
      for (i32 part = 0; part < kKeyParts; ++part)
        tile_max[i] = fmaxf(tile_max[i], load_one(maximum(part, row + 8 * i)));
    }
  }
  // Weights of this warp's part, and of all parts.
  DEV void put_weights(i32 r, const Weights<kPartN>& w) const {
    store_results<kPartN, kWeightPitch>(w, weights(), first_own_row() + 16 * r, own_half() * (kPartN / 16));
  }
  DEV void take_weights(i32 r, Weights<kBlockN>& w) const {
    load_results<kBlockN, kWeightPitch>(w, weights(), first_own_row() + 16 * r, 0);
  }

 private:
  static constexpr i32 kWeightPitch = round_up(2 * kBlockN, 128);
  DEV u32 votes(i32 warp) const { return sm + kLayout.votes + kVoteBytes * (odd * kWarps + warp); }
  DEV u32 weights() const { return sm + kLayout.weights + odd * (kBlockM * kWeightPitch); }
  // Where the states of the parts will be at the segment's end.
  DEV u32 maximum(u32 part, i32 row) const { return sm + kLayout.states + (part * kBlockM + row) * 16; }
};

// This warp's part of a segment. A turn of the loop, in the order of time:
//
//   wait for K
//   S = Q K^T of this warp's part; give K back
//   scores, weights and a vote of this part
//   wait for the other warps
//   an exact step, if a row must take one
//   wait for V
//   O += P V in this warp's columns; give V back
//
// Keys: Ring, if these warps copy too, or SlotsInTurn.
template <class Rows, class Keys>
DEV void attend_shared(u32 sm, const DecodeParams& p, const Segment& segment, Keys& ring,
                       float (&o)[kRowTiles][kOutSums], Rows (&rows)[kRowTiles]) {
  SharingWarps<Rows> warps{sm};
  const QueryOperand query{sm + kLayout.q};
  LanePlaces places[kRowTiles];
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) places[r].open(p, segment.group, first_own_row() + 16 * r);
  const auto unit = softmax_unit(p);
  const auto lane_row = [](i32 r) { return first_own_row() + 16 * r + static_cast<i32>(opaque_thread() % 32 / 4); };
  bool fresh = true;
#pragma unroll 1
  for (i32 tile = segment.tile(); tile < segment.end_tile(); ++tile, fresh = false) {
    typename Rows::TileWeights w[kRowTiles];
    typename Rows::TileSums sums[kRowTiles];
    bool keeps[kRowTiles][2] = {};
    float s[kRowTiles][kPartN / 2];
    multiply_rows<kQkDepth, kKeyPitch, false, kColumnBlock>(s, ring.take() + own_half() * (kPartN * kKeyPitch), query);
    ring.template give<false>();
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      LaneScores{p, segment.group, places[r]}.apply(s[r], tile * kBlockN + static_cast<i32>(own_half()) * kPartN);
      rows[r].see(s[r], unit.unit);
      rows[r].weigh(s[r], w[r], sums[r], keeps[r], unit);
      if (fresh) keeps[r][0] = keeps[r][1] = false;
      warps.put_weights(r, w[r]);
    }
    warps.vote(keeps);
    warps.sync();
    if (warps.all_keep(keeps)) {
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) rows[r].take(sums[r]);
    } else {
      float tile_max[kRowTiles][2];
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        row_max(s[r], kPartN, tile_max[r]);
        warps.put_maxima(lane_row(r), tile_max[r]);
      }
      warps.sync();
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        warps.take_maxima(lane_row(r), tile_max[r]);
        rows[r].take_exactly(s[r], w[r], o[r], tile_max[r], keeps[r], unit);
        warps.put_weights(r, w[r]);
      }
      warps.sync();
    }
    Weights<kBlockN> all[kRowTiles];
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) warps.take_weights(r, all[r]);
    multiply_columns<kBlockN, kValuePitch, kHalves, kColumnBlock>(o, all, ring.take(), own_half());
    ring.template give<true>();
    warps.odd ^= 1;
  }
}

}  // namespace onepass::decode
