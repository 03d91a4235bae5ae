// Prompts with one result per row on Hopper: two or three warpgroups of 64 rows, and four warps that copy K, V and Q
// for them.
//
// wgmma sums as mma.sync does: the products of sixteen elements after each other, from the first on. So a row's bits
// are those of warps.cuh and of the kernels for few rows. A warpgroup's turn, with tiles of 64 keys:
//
//   tile i               | tile i - 1
//   issue S = Q K^T      | issue O += P V
//   wait for S           | wait for O
//   a piece begins here: O and the row's sums join those of the pieces before
//   scores, P; an exact step moves O, if a row must take one
//
// A warpgroup's softmax runs under the products of the others. Its own leave no time: their operands in registers keep
// its warps until the last of them begins.
#pragma once
#include "cuda/decode/one_result/copiers.cuh"
#include "cuda/decode/one_result/sums.cuh"
#include "cuda/device/wgmma.cuh"

namespace onepass::decode {

constexpr i32 kGroupRows = 64, kGroupThreads = 128;
constexpr i32 kQuerySteps = kQkDepth / 16;
constexpr bool kQueryInRegisters = kThreads == 2 * kGroupThreads || kQkDepth <= 64;  // three warpgroups have fewer
static_assert(!kWgmma || (kThreads % kGroupThreads == 0 && kRowTiles == 1 && kSlots % 2 == 0));

// Pairs of K and V in the ring.
enum KeyOrValue : u32 { kKey, kValue };
struct Pairs {
  u32 sm;
  PipelineState<kSlots / 2> state{};

  DEV void advance() { state.advance(); }
  DEV Pairs before() const {
    const bool wraps = state.slot == 0;
    return {sm, {wraps ? kSlots / 2 - 1 : state.slot - 1, state.parity ^ wraps}};
  }

  DEV u32 slot(KeyOrValue what) const { return 2 * state.slot + what; }
  DEV u32 tile(KeyOrValue what) const { return sm + kLayout.rings + slot(what) * kLayout.slot_bytes; }
  DEV SlotBarriers barriers(KeyOrValue what) const { return {sm, slot(what)}; }
  DEV bool is_here(KeyOrValue what) const { return mbar_try(barriers(what).full(), state.parity); }
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
  struct Query {
    u32 fragment[kQueryInRegisters ? 4 * kQuerySteps : 1];
  };
  Pairs pairs{sm};  // the tile's; its P V comes with S of the next one

  static DEV i32 group() { return own_warp() / (kGroupThreads / 32); }

  // The keys of a block of rows, at least one tile. All pieces but the last are joined.
  DEV void attend(const Group& g, float (&o)[kOutSums], Rows& rows) {
    LanePlaces places;
    places.open(p, g, first_own_row());
    const LaneScores scores{p, g, places};
    const i32 first = g.first_tile, end = first + g.tiles;
    Query query;
    load_query(query);
    Weights<kBlockN> w;
    float s[kBlockN / 2];
    pairs.wait(kKey);
    issue_scores(s, query);
    scores_done(s);
#pragma unroll 1
    for (i32 tile = first;;) {  // a piece
      if (tile != first) {
        join_piece(tile == first + kPieceTiles, rows, o, false);
        fill(o, 0.0f);
        rows = {};
      }
      bool keeps[2] = {false, false};
      see(s, rows, scores, tile);
      take_exactly(s, w, o, rows, keeps, softmax_unit(p));
      pairs.advance();
#pragma unroll 1
      while (++tile % kPieceTiles != 0 && tile != end) {
        multiply(s, o, w, query);
        see(s, rows, scores, tile);
        take(s, w, o, rows);
        pairs.advance();
      }
      if (tile == end) break;
      multiply(s, o, w, query);
    }
    pairs.before().wait(kValue);
    issue_values(o, w);
    values_done(o, w);
  }

 private:
  // S of a tile, and O += P V of the tile before.
  DEV void multiply(float (&s)[kBlockN / 2], float (&o)[kOutSums], Weights<kBlockN>& w, const Query& query) const {
    const bool key_is_here = pairs.is_here(kKey), value_is_here = pairs.before().is_here(kValue);  // both under way
    if (!key_is_here || config.box_rows == 0) pairs.wait(kKey);
    if (!value_is_here || config.box_rows == 0) pairs.before().wait(kValue);
    issue_scores(s, query);
    issue_values(o, w);
    scores_done(s);
    values_done(o, w);
  }
  DEV void see(float (&s)[kBlockN / 2], Rows& rows, const LaneScores& scores, i32 tile) const {
    scores.apply(s, tile * kBlockN);
    rows.see(s, softmax_unit(p).unit);
  }
  DEV void load_query(Query& query) const {
    if constexpr (kQueryInRegisters) {
      const u32 lane = opaque_thread() % 32, row = first_own_row() + lane % 16;
#pragma unroll
      for (i32 k = 0; k < kQuerySteps; ++k)
        ldmatrix4(query.fragment + 4 * k, sm + kLayout.q + query_chunk(row, 2 * k + lane / 16));
    } else {
      async_proxy_fence();  // cp.async uses another proxy than wgmma
    }
  }
  DEV void issue_scores(float (&s)[kBlockN / 2], const Query& query) const {
    wgmma_fence();
#pragma unroll
    for (i32 k = 0; k < kQuerySteps; ++k) {
      const u64 keys = smem_descriptor(pairs.tile(kKey), 16, k / 4 * (kBlockN * kBlockBytes) + k % 4 * 32);
      if constexpr (kQueryInRegisters)
        Scores::registers_kmajor(s, query.fragment + 4 * k, keys, k != 0);
      else
        Scores::shared(s,
                       smem_descriptor(sm + kLayout.q + group() * (kGroupRows * kBlockBytes), 16,
                                       k / 4 * (kBlockM * kBlockBytes) + k % 4 * 32),
                       keys, k != 0);
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
      Output::registers_mnmajor(
          o, w + 4 * k, smem_descriptor(pairs.before().tile(kValue), kBlockN * kBlockBytes, k * 16 * kBlockBytes), 1);
    wgmma_commit();
  }
  DEV void scores_done(float (&s)[kBlockN / 2]) const {
    wgmma_wait<0>();
    fence_operand(s);
    pairs.release(kKey);
  }
  DEV void values_done(float (&o)[kOutSums], Weights<kBlockN>& w) const {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(w);
    pairs.before().release(kValue);
  }
  // Weights of a tile, and its step.
  DEV void take(const float (&s)[kBlockN / 2], Weights<kBlockN>& w, float (&o)[kOutSums], Rows& rows) const {
    const auto unit = softmax_unit(p);
    typename Rows::TileSums sums;
    bool keeps[2];
    rows.weigh(s, w, sums, keeps, unit);
    if (__all_sync(0xffffffffu, keeps[0] && keeps[1]))
      rows.take(sums);
    else
      take_exactly(s, w, o, rows, keeps, unit);
  }
};

// Those that hold rows: all of a CTA's blocks.
template <class Rows>
DEV void take_group_blocks(u32 sm, const DecodeParams& p, const Line& line, Segment segment) {
  GroupRows<Rows> group{{sm, p}};
  clear_flags(sm);
  all_sync();
  const auto stored = [&] { return sm + kLayout.segments + kStoredBytes * own_warp(); };
  const auto stored_query = [&] { return stored() + 64; };
  store_word(stored_query(), 0);
#pragma unroll 1
  while (segment.steps != 0) {
    float o[kOutSums];
    Rows rows = {};
    fill(o, 0.0f);
    if (opaque_thread() % 32 == 0) segment.store(stored());
    __syncwarp();
    if (segment.group.tiles != 0) {
      QueryBarriers(sm, static_cast<u32>(load_word(stored_query()))).wait();
      group.attend(segment.group, o, rows);
      QueryBarriers query(sm, static_cast<u32>(load_word(stored_query())));
      query.release();
      store_word(stored_query(), static_cast<i32>(query.parity));
    }
    segment = Segment::load(stored());
    const Group& g = segment.group;
    group.join_piece(g.tiles <= kPieceTiles, rows, o, true);
    if (bar_any(kConsumers, kThreads, !group.put(g, o))) {
      run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
      all_sync();
      clear_flags(sm);
      all_sync();
    }
    segment = Segment::load(stored());
    __syncwarp();
    segment = line.next_block(segment.group);
  }
}

}  // namespace onepass::decode
