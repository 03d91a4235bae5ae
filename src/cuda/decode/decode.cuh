// Decoding for sm_80 and later: few query rows against many keys, as fast as K and V can be read.
//
// The rows of a K/V head, group x seq_q of them, are one left operand, so that K and V are read once. A block of
// threads takes its part of the line of all work (work_partition.cuh), each of its teams of warps every config.share-th
// tile of keys of a segment:
//
//   S = Q K^T           fragments of Q and K from shared memory, where K and V arrive in the team's ring
//   (kv_pipeline.cuh) P = 2^(S - m)       lazy online softmax in registers, no word to the other teams O += P V
//
// Then the teams' states (m, l, O) become the segment's, and the segments' the row's: by the block that finishes the
// last of them (combine_block.cuh). README.md has budgets and what was measured.
#pragma once
#include "cuda/decode/decode_tile.cuh"  // first: the work partition is compiled for its row blocks

#include "cuda/attention/descale.cuh"
#include "cuda/decode/combine_block.cuh"
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/packed_rows.cuh"
#include "cuda/decode/products_e4m3.cuh"
#include "cuda/decode/unified.cuh"
#include "cuda/device/order.cuh"

namespace onepass::decode {

struct QueryOperand {  // this warp's rows of Q
  using Fragments = LeftFragments<kRowTiles, kLayout.q_pitch>;
  u32 tile;
  DEV u32 address() const { return Fragments::address(tile); }
  DEV Fragments operator()(u32 address, i32 k) const {
    Fragments a;
    a.load(address, k);
    return a;
  }
};

// All rows of the group by all threads; rows past the last one are zeros. now: through registers, since to wait for a
// copy is to wait for all K and V that were asked for before it.
template <bool now>
DEV void copy_query(u32 sm, const DecodeParams& p, const Group& g) {
  constexpr i32 kBytes = features.dim_qk * kElementBytes, kChunks = padded(features.dim_qk, 16) * kElementBytes / 16;
  if (g.tiles != 0) {
#pragma unroll 1
    for (i32 at = opaque_thread(); at < kBlockM * kChunks; at += kThreads) {
      const i32 row = at / kChunks, chunk = at - row * kChunks, bytes = min(kBytes - chunk * 16, 16);
      const PackedRow x = PackedRow::of(p, g, row);
      const i64 offset = (features.packed ? 0 : g.batch) * p.q_stride[0] + x.head * p.q_stride[1] +
                         static_cast<i64>(g.q_begin + x.token) * p.q_stride[2];
      const char* const from = static_cast<const char*>(p.q) + offset * kElementBytes + chunk * 16;
      const u32 to = sm + kLayout.q + swizzled(row, chunk, kLayout.q_pitch);
      if constexpr (now)
        move_chunk<kBytes % 16 == 0>(to, from, row < g.rows(p) ? bytes : 0);
      else
        copy_chunk<kBytes % 16 == 0>(to, from, row < g.rows(p) ? bytes : 0);
    }
  }
  if constexpr (!now) copies_commit();
}

// K and V as the cache has them: of q's type, or of e4m3 with factors for every 128 keys.
struct CacheKeys {
  float factor = 0.0f;       // of V's tiles in O; 0: there are none yet
  float k = 1.0f, v = 1.0f;  // of a tile
  u32 seen = 0;              // nan_bits

  // Ahead of where it is wanted: the answer is there by then.
  DEV void ask_k(const DecodeParams& p, const Group& g, i32 first) {
    if constexpr (kFp8Keys) k = kE4m3Unit * k_factor(p, g.batch, g.kv_head(p), first / kDescaleRows);
  }
  DEV void ask_v(const DecodeParams& p, const Group& g, i32 first) {
    if constexpr (kFp8Keys) v = v_factor(p, g.batch, g.kv_head(p), first / kDescaleRows);
  }
  template <i32 N, class Left>
  DEV void issue_scores(float (&s)[kRowTiles][N], u32 tile, const Left& query) {
    if constexpr (kFp8Keys)
      multiply_rows_e4m3<kQkDepth, kLayout.k_pitch>(s, tile, query, seen);
    else
      multiply_rows<kQkDepth, kLayout.k_pitch>(s, tile, query);
  }
  template <i32 N>
  DEV void scale(float (&s)[kRowTiles][N], u32 sm) const {
    if constexpr (kFp8Keys) {
      const u32 row = own_warp() / kShare * kWarpRows + own_thread() % 32 / 4;
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        const u32 units = sm + kLayout.units + 4 * (row + 16 * r);
        const float by[2] = {k * load_one(units), k * load_one(units + 32)};
#pragma unroll
        for (i32 j = 0; j < N; ++j) s[r][j] *= by[j >> 1 & 1];
      }
    }
  }
  // O in units of the next tile's factor.
  template <i32 N>
  DEV void take_factor(float (&o)[kRowTiles][N]) {
    if constexpr (kFp8Keys) {
      if (v != factor && factor != 0.0f) multiply_all(o, factor / v);
      factor = v;
    }
  }
  template <i32 N>
  DEV void issue_accumulate(float (&o)[kRowTiles][N], const Weights<kBlockN> (&w)[kRowTiles], u32 tile) {
    if constexpr (kFp8Keys)
      multiply_columns_e4m3<kBlockN, kLayout.v_pitch>(o, w, tile, seen);
    else
      multiply_columns<kBlockN, kLayout.v_pitch>(o, w, tile);
  }
  // O as other types have it. Rows that a NaN may be in are not finite, and go to the fallback.
  template <i32 N>
  DEV void finish(float (&o)[kRowTiles][N]) const {
    if constexpr (kFp8Keys) {
      sort_output(o, factor * kE4m3Unit);
      if (!any_nan(seen)) return;
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) o[r][0] = o[r][2] = __int_as_float(0x7fffffff);
    }
  }

 private:
  template <i32 N>
  static DEV void multiply_all(float (&o)[kRowTiles][N], float by) {
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (i32 j = 0; j < N; ++j) o[r][j] *= by;
    }
  }
};

// This warp's part of a segment.
DEV void attend(u32 sm, const DecodeParams& p, const Segment& segment, Ring& ring, float (&o)[kRowTiles][kOutN / 2],
                LaneRows (&rows)[kRowTiles]) {
  float s[kRowTiles][kBlockN / 2];
  Weights<kBlockN> w[kRowTiles];
  const QueryOperand query{sm + kLayout.q};
  const i32 first_row = own_warp() / kShare * kWarpRows;
  LanePlaces places[kRowTiles];
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) places[r].open(p, segment.group, first_row + 16 * r);
  CacheKeys keys;
  if constexpr (kUnified) {
    for (LaneRows& row : rows) begin_unified(p, row);
  }
  constexpr float kLimit = kUnified ? kLargestSum : kLazyLimit;
  bool fresh = !kUnified;
#pragma unroll 1
  for (i32 tile = segment.tile() + own_team(); tile < segment.end_tile(); tile += kShare, fresh = false) {
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
      if (fresh || !softmax_lazy<Product, kRoundedSums>(s[r], w[r], rows[r], unit, drop, kLimit))
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

}  // namespace onepass::decode

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm80::kThreads, 1)
    attention_decode(const __grid_constant__ onepass::decode::DecodeParams p) {
  using namespace onepass;
  using namespace onepass::decode;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  if constexpr (features.shared()) {
    if (p.concurrent) let_next_kernel_start();
  }
  const Line line(p);
  const i32 block = static_cast<i32>(blockIdx.x), end = line.begin_of(block + 1);
  Segment segment = line.first(line.begin_of(block), end);
  Ring ring{p, line, end};
  copy_query<false>(sm, p, segment.group);  // in front of all keys
  ring.begin(sm, segment);
  copies_wait<kSlots>();
#pragma unroll 1
  while (segment.steps != 0) {
    float o[kRowTiles][kOutN / 2];
    LaneRows rows[kRowTiles];
    for (LaneRows& r : rows) r = {};
    clear(o);
    __syncthreads();  // Q is here
    if constexpr (kFp8Keys) {
      sort_query(sm);
      __syncthreads();
    }
    attend(sm, p, segment, ring, o, rows);
    unite(sm, p, line, segment, end, o, rows);
    segment = line.next(segment, end);
    if (segment.steps == 0) break;
    copy_query<true>(sm, p, segment.group);
  }
  if constexpr (features.shared()) {
    if (p.concurrent) wait_for_kernel_before();  // one in front of it may still run
  }
}
