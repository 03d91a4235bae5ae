// Prompts with one result per row on Hopper: two warpgroups of 64 rows, and four warps that copy K, V and Q for them.
//
// wgmma sums as mma.sync does: the products of sixteen elements after each other, from the first on. So a row's bits
// are those of warps.cuh and of the kernels for few rows. A warpgroup's turn, with tiles of 64 keys:
//
//   tile i              | tile i - 1
//   issue S = Q K^T     |
//                       | issue O += P V
//   wait for S          | under way
//   scores, P           | under way
//                       | wait for O
//   an exact step moves O, if a row must take one
//
// One warpgroup's softmax runs under the other's products, too.
#pragma once
#include "cuda/decode/one_result/copiers.cuh"
#include "cuda/decode/one_result/sums.cuh"
#include "cuda/device/wgmma.cuh"

namespace onepass::decode {

constexpr i32 kGroupRows = 64, kGroupThreads = 128;
constexpr i32 kQuerySteps = kQkDepth / 16;
static_assert(!kWgmma || (kThreads == 2 * kGroupThreads && kRowTiles == 1 && kSlots % 2 == 0));

// Pairs of K and V in the ring.
enum KeyOrValue : u32 { kKey, kValue };
struct Pairs {
  u32 sm;
  PipelineState<kSlots / 2> state{};

  DEV u32 slot(KeyOrValue what) const { return 2 * state.slot + what; }
  DEV u32 tile(KeyOrValue what) const { return sm + kLayout.rings + slot(what) * kLayout.slot_bytes; }
  DEV SlotBarriers barriers(KeyOrValue what) const { return {sm, slot(what)}; }
  DEV void wait(KeyOrValue what) const {
    mbar_wait(barriers(what).full(), state.parity);
    if constexpr (config.box_rows == 0) async_proxy_fence();  // cp.async uses another proxy than wgmma
  }
  DEV void release(KeyOrValue what) const { warp_arrive(barriers(what).empty(), opaque_thread() % 32 == 0); }
};

template <class Rows>
struct GroupRows : BlockSums {
  // Templates' arguments, so that kernels without warpgroups need no text of these products.
  static constexpr i32 kOfRows = Rows::kKeys / kBlockN;  // 1
  using Scores = Wgmma<kOfRows * kBlockN>;
  using Output = Wgmma<kOfRows * kOutN>;
  using Query = u32[4 * kQuerySteps];
  Pairs pairs{sm}, before{sm};  // before: of the tile whose P V is to come or under way

  static DEV i32 group() { return own_warp() / (kGroupThreads / 32); }

  // A piece.
  DEV void attend(const Segment& segment, float (&o)[kOutSums], Rows& rows) {
    fill(o, 0.0f);
    if (segment.tile() >= segment.end_tile()) return;
    const Group& g = segment.group;
    LanePlaces places;
    places.open(p, g, first_own_row());
    const i32 end = segment.end_tile();
    i32 tile = segment.tile();
    Query query;
    load_query(query);
    const LaneScores scores{p, g, places};
    Weights<kBlockN> w;
    pairs.wait(kKey);
    float s[kBlockN / 2];
    issue_scores(s, query);
    scores_ready<0>(s);
    const auto step = weigh(s, w, rows, scores, tile * kBlockN);
    take(step, s, w, o, rows);
    next_pair();
#pragma unroll 1
    for (++tile; tile < end; ++tile) {
      pairs.wait(kKey);
      before.wait(kValue);
      issue_scores(s, query);
      issue_values(o, w);
      scores_ready<1>(s);
      Weights<kBlockN> next;
      const auto own = weigh(s, next, rows, scores, tile * kBlockN);
      values_done(o, w);
      take(own, s, next, o, rows);
#pragma unroll
      for (i32 j = 0; j < kBlockN / 4; ++j) w[j] = next[j];
      next_pair();
    }
    before.wait(kValue);
    issue_values(o, w);
    values_done(o, w);
  }

 private:
  DEV void load_query(Query& query) const {
    const u32 lane = opaque_thread() % 32, row = first_own_row() + lane % 16;
#pragma unroll
    for (i32 k = 0; k < kQuerySteps; ++k)
      ldmatrix4(query + 4 * k, sm + kLayout.q + mma::swizzled(row, 2 * k + lane / 16, kLayout.q_pitch));
  }
  DEV void issue_scores(float (&s)[kBlockN / 2], const Query& query) const {
    wgmma_fence();
#pragma unroll
    for (i32 k = 0; k < kQuerySteps; ++k) {
      const u64 keys = smem_descriptor(pairs.tile(kKey), 16, k / 4 * (kBlockN * kBlockBytes) + k % 4 * 32);
      Scores::registers_kmajor(s, query + 4 * k, keys, k != 0);
    }
    wgmma_commit();
  }
  // O += P V of the tile before.
  DEV void issue_values(float (&o)[kOutSums], Weights<kBlockN>& w) const {
    fence_operand(w);
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (i32 k = 0; k < kBlockN / 16; ++k)
      Output::registers_mnmajor(o, w + 4 * k,
                                smem_descriptor(before.tile(kValue), kBlockN * kBlockBytes, k * 16 * kBlockBytes), 1);
    wgmma_commit();
  }
  DEV void values_done(float (&o)[kOutSums], Weights<kBlockN>& w) const {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(w);
    before.release(kValue);
  }
  // S is in its registers; `younger` products may still run.
  template <i32 younger>
  DEV void scores_ready(float (&s)[kBlockN / 2]) const {
    wgmma_wait<younger>();
    fence_operand(s);
    pairs.release(kKey);
  }
  DEV void next_pair() {
    before.state = pairs.state;
    pairs.state.advance();
  }

  struct Step {
    typename Rows::TileSums sums;
    bool keeps[2], lazy;
  };
  // Weights of a tile, while O may be under way; then the tile's step. The vote stands in front of the wait for O, and
  // so do the weights.
  DEV Step weigh(float (&s)[kBlockN / 2], Weights<kBlockN>& w, Rows& rows, const LaneScores& scores, i32 first) const {
    scores.apply(s, first);
    const auto unit = softmax_unit(p);
    Step step;
    rows.see(s, unit.unit);
    rows.weigh(s, w, step.sums, step.keeps, unit);
    step.lazy = __all_sync(0xffffffffu, step.keeps[0] && step.keeps[1]);
    return step;
  }
  DEV void take(Step step, const float (&s)[kBlockN / 2], Weights<kBlockN>& w, float (&o)[kOutSums], Rows& rows) const {
    if (step.lazy)
      rows.take(step.sums);
    else
      take_exactly(s, w, o, rows, step.keeps, softmax_unit(p));
  }
};

// Those that hold rows: all of a CTA's segments.
template <class Rows>
DEV void take_group_blocks(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end) {
  GroupRows<Rows> group{{sm, p}};
  clear_flags(sm);
  all_sync();
  const auto stored = [&] { return sm + kLayout.segments + kStoredBytes * own_warp(); };
  const auto stored_end = [&] { return stored() + 60; };
  const auto stored_query = [&] { return stored() + 64; };
  store_word(stored_end(), end);
  store_word(stored_query(), 0);
#pragma unroll 1
  while (segment.steps != 0) {
    float o[kOutSums];
    Rows rows = {};
    if (opaque_thread() % 32 == 0) segment.store(stored());
    __syncwarp();
    if (segment.tile() < segment.end_tile()) QueryBarriers(sm, static_cast<u32>(load_word(stored_query()))).wait();
    group.attend(segment, o, rows);
    segment = Segment::load(stored());
    const Group& g = segment.group;
    const bool over = segment.step + segment.steps == g.end();
    if (over && segment.tile() < segment.end_tile()) {
      QueryBarriers query(sm, static_cast<u32>(load_word(stored_query())));
      query.release();
      store_word(stored_query(), static_cast<i32>(query.parity));
    }
    group.join_piece(segment, rows, o, over);
    if (over) {
      if (bar_any(kConsumers, kThreads, !group.put(g, o))) {
        run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
        all_sync();
        clear_flags(sm);
        all_sync();
      }
    }
    segment = Segment::load(stored());
    __syncwarp();
    segment = line.next(segment, load_word(stored_end()));
  }
}

}  // namespace onepass::decode
