// Decoding for sm_80 and later: few query rows against many keys, as fast as K and V can be read.
//
// The rows of a K/V head, group x seq_q of them, are one left operand, so that K and V are read once. A CTA takes its
// part of the line of all work (work_partition.cuh); each of its teams of warps takes every config.share-th tile of
// keys of a segment:
//
//   S = Q K^T        fragments of Q and K from shared memory; K and V arrive in the team's ring (kv_pipeline.cuh)
//   P = 2^(S - m)    lazy online softmax in registers, without communication between teams
//   O += P V
//
// Then the teams' states (m, l, O) are combined into the segment's, and the segments' into the row's by the CTA that
// finishes last (combine_block.cuh). README.md has budgets and measurements.
#pragma once
#include "cuda/decode/decode_tile.cuh"  // first: the work partition is compiled for its row blocks

#include "cuda/decode/combine_block.cuh"
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/one_result/shared_tiles.cuh"
#include "cuda/decode/one_result/warpgroups.cuh"
#include "cuda/decode/one_result/warps.cuh"
#include "cuda/decode/operands.cuh"
#include "cuda/decode/unified.cuh"
#include "cuda/device/order.cuh"

namespace onepass::decode {

// This warp's part of a segment. A turn of the loop, in the order of time; copies alternate between K and V:
//
//   tile i           | tiles after it
//   wait for K       |
//   S = Q K^T        |
//   give K back      | copy the K or V that is kSlots copies ahead
//   scores, softmax  |
//   wait for V       |
//   O += P V         |
//   give V back      | copy the K or V that is kSlots copies ahead
template <class Rows>
DEV void attend(u32 sm, const DecodeParams& p, const Segment& segment, Ring& ring, float (&o)[kRowTiles][kOutSums],
                Rows (&rows)[kRowTiles]) {
  float s[kRowTiles][kBlockN / 2];
  Weights<kBlockN> w[kRowTiles];
  const QueryOperand query{sm + kLayout.q};
  const i32 first_row = first_own_row();
  LanePlaces places[kRowTiles];
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) places[r].open(p, segment.group, first_row + 16 * r);
  CacheKeys keys;
  if constexpr (kUnified) {
    for (LaneRows& row : rows) begin_unified(p, row);
  }
  constexpr float kLimit = kUnified ? kLargestSum : kLazyLimit;
  bool fresh = !kUnified;
#if defined(ONEPASS_MASK_MOD)
  ShownTiles shown;
  const auto next_tile = [&] { return shown.next(p, segment.group, segment.end_tile()); };
#pragma unroll 1
  for (i32 tile = shown.first(p, segment.group, first_own_tile(segment.tile()), segment.end_tile());
       tile < segment.end_tile(); tile = next_tile(), fresh = false) {
#else
#pragma unroll 1
  for (i32 tile = first_own_tile(segment.tile()); tile < segment.end_tile();
       tile = next_own_tile(tile), fresh = false) {
#endif
    const i32 first = tile * kBlockN;
    if constexpr (kRowTiles == 1) keys.ask_k(p, segment.group, first), keys.ask_v(p, segment.group, first);
    keys.issue_scores(s, ring.take(), query);
    ring.give<false>();
    if constexpr (kRowTiles == 2) keys.ask_k(p, segment.group, first);  // no registers for them before
    keys.scale(s, sm);
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      const LaneScores scores{p, segment.group, places[r]};
      scores.apply(s[r], first);
      const auto unit = softmax_unit(p);
      const auto drop = scores.drop(first);
      rows[r].see(s[r], unit.unit);
      if constexpr (kOneResult)
        softmax_by_row<Product, kRoundedSums>(s[r], w[r], o[r], rows[r], unit, drop, fresh, kLimit);
      else if (fresh || !softmax_lazy<Product, kRoundedSums>(s[r], w[r], rows[r], unit, drop, kLimit))
        softmax_exact<Product, kRoundedSums>(s[r], w[r], o[r], rows[r], unit, drop);
    }
    if constexpr (kRowTiles == 2) keys.ask_v(p, segment.group, first);
    keys.take_factor(o);
    keys.issue_accumulate(o, w, ring.take());
    ring.give<true>();
  }
  keys.finish(o);
  if constexpr (kUnified) {
    for (LaneRows& row : rows) end_unified(row);
  }
}

// All of a CTA's segments; Q of the first is on its way.
template <class Keys>
DEV void take_segments(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end, Keys& ring) {
#pragma unroll 1
  while (segment.steps != 0) {
    float o[kRowTiles][kOutSums];
    OwnRows rows[kRowTiles];
    for (OwnRows& r : rows) r = {};
    clear(o);
    all_sync();  // Q is here
    if constexpr (kFp8Keys) {
      sort_query(sm, [&](i32 row) { return query_factor(p, segment.group, row); });
      all_sync();
    }
    if constexpr (kSharesTiles)
      attend_shared(sm, p, segment, ring, o, rows);
    else
      attend(sm, p, segment, ring, o, rows);
    unite(sm, p, line, segment, end, o, rows);
    segment = line.next(segment, end);
    if (segment.steps == 0) break;
    copy_query<true>(sm, p, segment.group);
  }
}

template <bool kMaps>
struct ParamsOf {
  using Type = DecodeParams;
};
template <>
struct ParamsOf<true> {
  using Type = CopiedParams;
};
using KernelParams = ParamsOf<kCopyWarps>::Type;

// This CTA's part of the work. A template: what a kernel does not do is not compiled.
template <class Params>
DEV void take_line(u32 sm, const Params& p) {
  const Line line(p);
  if constexpr (kCopyWarps) {
    beside_copiers(sm, p, line, [&](const Segment& segment, i32 end) {
      if constexpr (kWgmma) {
        take_group_blocks<PromptRows>(sm, p, line, segment);
      } else {
        SlotsInTurn ring{sm};
        copy_query<true>(sm, p, segment.group);
        take_segments(sm, p, line, segment, end, ring);
      }
    });
  } else {
    i32 end;
    const Segment segment = line.open(line_block(p), end);
    Ring ring{p, line, end};
    copy_query<false>(sm, p, segment.group);  // in front of all keys
    if constexpr (kPrompts) {
      ring.begin_pairs(sm, segment);
      copies_wait<kSlots - 2>();
      take_blocks<PromptRows>(sm, p, line, segment, end, ring);
    } else {
      ring.begin(sm, segment);
      copies_wait<kSlots>();
      take_segments(sm, p, line, segment, end, ring);
    }
  }
}

}  // namespace onepass::decode

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::mma::config.all_threads(), onepass::mma::config.at_once())
    attention_decode(const __grid_constant__ onepass::decode::KernelParams p) {
  using namespace onepass;
  using namespace onepass::decode;
  extern __shared__ __align__(kCopyWarps ? 1024 : 128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  if constexpr (features.shared()) {
    if (p.concurrent) let_next_kernel_start();
  }
  take_line(sm, p);
  if constexpr (features.shared()) {
    if (p.concurrent && blockIdx.x == 0) wait_for_kernel_before();  // this kernel's end is the end of both
  }
}
