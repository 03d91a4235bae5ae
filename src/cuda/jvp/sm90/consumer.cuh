// The state of a consumer warpgroup, and the steps of its loop (jvp.cuh).
#pragma once
#include "cuda/jvp/sm90/epilogue.cuh"
#include "cuda/jvp/sm90/products.cuh"

namespace onepass::cuda::jvp::sm90 {

struct Consumer {
  const SharedMemory& memory;
  const u32 group, lane, warp;  // group: which of the warpgroups; warp: among all of theirs
  const Maps& maps;
  const JvpParams& p;
  Pipeline<kLayout.q> q = memory.q();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  Scores scores{p};
  JvpRows rows;
  Fragment<float, kScores> s, ds;
  Fragment<float, kOutSums> o, t;
  Weights w, x;

  // Not an aggregate: that would set the fragments to 0.
  DEV Consumer(const SharedMemory& shared, u32 warpgroup, const Maps& tensors, const JvpParams& params)
      : memory(shared),
        group(warpgroup),
        lane(threadIdx.x % 32),
        warp(warpgroup * kGroupWarps + threadIdx.x / 32 % kGroupWarps),
        maps(tensors),
        p(params) {}

  DEV i32 group_row(const WorkTile& tile) const { return tile.row + static_cast<i32>(group / kVGroups * kGroupRows); }
  DEV i32 first_row(const WorkTile& tile) const { return group_row(tile) + static_cast<i32>(warp % kGroupWarps * 16); }
  DEV u32 part() const { return kVGroups == 1 ? 0 : group % kVGroups; }  // of O's columns
  DEV WorkTile take_tile() const {
    q.wait();
    return load_tile(memory.tile(q.state.parity));
  }
  DEV void open(const WorkTile& tile) {
    scores.open(tile, first_row(tile));
    rows = {};
    fill(o, 0.0f);
    fill(t, 0.0f);
  }
  // Q's memory is free behind the tile's last S.
  DEV void done_with_query() {
    __syncwarp();
    q.release(lane == 0);
  }
  // True if a row of the warpgroup sees a key of block n. The CTA loads all that one of its warpgroups sees.
  DEV bool sees(const WorkTile& tile, i32 n) const {
    const i32 row = group_row(tile);
    return (!features.bounded_left || scores.band.keys_of(row).lo < (n + 1) * kKeys) &&
           (!features.bounded_right || n * kKeys < scores.band.keys_of(row + static_cast<i32>(kGroupRows) - 1).hi);
  }
  DEV void pass_block() {
    k.wait();
    k.release(lane == 0);
    v.wait();
    v.release(lane == 0);
  }

  // Warpgroups issue S in turns, so that one's softmax runs under another's products. The first turn is the first
  // one's.
  DEV void begin_turns() const {
    if (group == kGroups - 1) bar_arrive(kTurn, 2 * kGroupThreads);
  }
  DEV void take_turn() const { bar_sync(kTurn + group, 2 * kGroupThreads); }
  DEV void end_turn() const { bar_arrive(kTurn + (group + 1 == kGroups ? 0 : group + 1), 2 * kGroupThreads); }

  DEV void block_scores() {
    wgmma_fence();
    issue_scores(s, ds, q.stage() + group / kVGroups * kGroupRows * kBlockColumnBytes, k.stage());
  }
  DEV void scores_ready() {
    wgmma_wait<0>();
    fence_operand(s);
    fence_operand(ds);
    k.release(lane == 0);
  }
  DEV BeforeScores before(i32 n) const { return scores.before<kScores>(n * kKeys); }
  // The largest score tells ahead of the weights which step is right: behind them no register holds a score.
  DEV void softmax(i32 n, const BeforeScores& known) {
    scores.apply_both(p, s, ds, n * kKeys, known);
    const auto drop = scores.drop(n * kKeys);
    if (fits_lazily(s, rows, scores.unit()))
      softmax_kept<true>(s, ds, w, x, rows, scores.unit(), drop);
    else
      softmax_moved(s, ds, w, x, o, t, rows, scores.unit(), drop);
  }
  DEV void block_sums() {
    fence_operand(w);
    fence_operand(x);
    fence_operand(o);
    fence_operand(t);
    wgmma_fence();
    issue_sums(o, t, w, x, v.stage() + part() * kOutBlocks * kKeyBlockBytes);
  }
  DEV void sums_ready() {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(t);
    v.release(lane == 0);
  }
  // Q's next tile may have come; the one in hand is read again, for its registers were needed in between.
  DEV void store() {
    const WorkTile tile = load_tile(memory.tile(q.state.parity ^ 1));
    scores.open(tile, first_row(tile));
    store_results(memory, warp, part(), maps, p, tile, scores, o, t, rows);
  }
};

}  // namespace onepass::cuda::jvp::sm90
