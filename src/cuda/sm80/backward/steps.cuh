// The results of a step: P and dS for the products of other warps, the sums of dQ, the gradients of slopes.
#pragma once
#include "cuda/attention/backward/dq_sums.cuh"
#include "cuda/device/barrier.cuh"
#include "cuda/device/order.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/sm80/backward/copy.cuh"

namespace onepass::sm80 {

// A fragment as the left operand of the next product, without what dropout drops. A NaN that is dropped stays: no other
// product brings it to dV, and a finite sum is not computed again.
template <i32 N>
DEV void pack_kept(const float (&x)[N], const DropoutMask<N>& dropout_mask, Weights<2 * N>& w) {
#pragma unroll
  for (i32 j = 0; j < N; j += 4) {
    float four[4];
#pragma unroll
    for (i32 i = 0; i < 4; ++i) four[i] = dropout_mask.has(j + i) ? x[j + i] : dropped<true>(x[j + i]);
    pack_four<Element, N>(j, four, w);
  }
}
constexpr u32 kPartGroups = kPartM * kElementBytes / 32;  // of a part of a step's rows
// This warp's part of a tile of kBlockN keys x kBlockM rows at `tile`, P's or dS's; a piece of it.
DEV void store_part(u32 tile, const Weights<kPieceM> (&w)[kScoreTiles], u32 piece = 0) {
#pragma unroll
  for (i32 r = 0; r < kScoreTiles; ++r)
    store_results<kPieceM, kLayout.ds_pitch>(w[r], tile, own_score_keys() + 16 * r,
                                             own_row_part() * kPartGroups + rows_before(piece) * kElementBytes / 32);
}
// The warps that share keys wait for each other.
DEV void meet_sharers() {
  if constexpr (kRowParts * kKeyParts > 1) bar_sync(1 + opaque_thread() / (32 * kShare), 32 * kShare);
}
// Products of this warp's part of P or dS and of its rows of a block at `rows`, for its columns of dV or dK. One row
// tile with several parts: multiply_stored has all of them.
constexpr bool kOwnApart = kRowParts == 1 || kRowTiles == 2;
template <i32 pitch, i32 N>
DEV void multiply_own(float (&sum)[kRowTiles][N], const Weights<kPieceM> (&w)[kRowTiles], u32 rows, u32 piece = 0) {
  if constexpr (kOwnApart)
    multiply_columns<kPieceM, pitch, kShare>(
        sum, w, rows + own_row_part() * (kPartM * pitch) + rows_before(piece) * pitch, own_part());
}
// The same of the parts that the warps of the same keys have stored at `tile`.
template <i32 pitch, i32 N>
DEV void multiply_stored(u32 tile, float (&sum)[kRowTiles][N], u32 rows) {
  if constexpr (kRowParts == 1) return;
  constexpr i32 kTokens = kOwnApart ? kPartM : kBlockM;
#pragma unroll
  for (i32 i = kOwnApart ? 1 : 0; i < (kOwnApart ? kRowParts : 1); ++i) {
    const u32 part = kOwnApart ? (own_row_part() + static_cast<u32>(i)) % kRowParts : 0;
    Weights<kTokens> w[kRowTiles];
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r)
      load_results<kTokens, kLayout.ds_pitch>(w[r], tile, own_keys() + 16 * r, part * kPartGroups);
    multiply_columns<kTokens, pitch, kShare>(sum, w, rows + part * (kPartM * pitch), own_part());
  }
}
// The same of all rows, which other warps and this one have stored at `tile`.
template <i32 pitch, i32 N>
DEV void multiply_all(u32 tile, float (&sum)[kRowTiles][N], u32 rows) {
  constexpr i32 kTokens = 32;
#pragma unroll
  for (i32 m = 0; m < kBlockM; m += kTokens) {
    Weights<kTokens> w[kRowTiles];
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r)
      load_results<kTokens, kLayout.ds_pitch>(w[r], tile, own_keys() + 16 * r, m * kElementBytes / 32);
    multiply_columns<kTokens, pitch, kShare>(sum, w, rows + m * pitch, own_part());
  }
}

// Deterministic: the key tiles that see a block of rows add to its sums one after the other, the first keys first.
DEV u32 order_of(const BackwardParams& p, const KeyTile& x, const RowStep& step, i64 place) {
  if constexpr (backward_shape.turn_keys != 0) return *turn_at(p, place, x.key);
  const i32 row = step.m * kBlockM;
  const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(row, min(row + kBlockM, x.seq_q));
  return x.key / kBlockN - keys.lo / kBlockN;
}
DEV void wait_for_sums(const BackwardParams& p, const KeyTile& x, const RowStep& step, i64 place) {
  if constexpr (!backward_features.deterministic) return;
  if (opaque_thread() == 0) wait_for_order(p.order + place, order_of(p, x, step, place));
  __syncthreads();
}
DEV void pass_sums(const BackwardParams& p, const KeyTile& x, const RowStep& step, i64 place) {
  if constexpr (!backward_features.deterministic) return;
  memory_fence();
  __syncthreads();
  if (opaque_thread() == 0) pass_order(p.order + place, order_of(p, x, step, place) + 1);
}

// dS K, by all warps: one or two row tiles each, and of the columns every kAcross-th group, as many at once as 32
// registers for a row tile hold.
DEV void add_dq(const BackwardParams& p, u32 sm, const KeyTile& x, const RowStep& step) {
  constexpr i32 kTiles = kRowTiles == 2 && (kBlockM == 64 || kKeyParts > 1) ? 2 : 1, kDown = kBlockM / (16 * kTiles);
  constexpr i32 kAcross = config.warps / kDown, kGroups = kQkDepth / kGroupColumns;
  constexpr i32 kOwn = ceil_div(kGroups, kAcross), kDepth = kBlockN % 32 == 0 && kHeldWords <= 32 ? 32 : 16;
  constexpr i32 kOfGroup = kGroupColumns / 2, kMost = (kHeldWords > 32 ? 16 : 32) / kOfGroup;
  constexpr i32 kAtOnce = kOwn < kMost ? kOwn : kMost;
  static_assert(config.warps % kDown == 0 && kBlockN % kDepth == 0);
  const i32 warp = static_cast<i32>(opaque_thread() / 32), row = warp % kDown * (16 * kTiles);
  const i64 place = place_of(p, step.head, first_q_block(p, x.batch) + step.m);
#pragma unroll 1
  for (i32 first = 0; first < kOwn; first += kAtOnce) {
    const i32 group = first * kAcross + warp / kDown;
    float dq[kTiles][kAtOnce * kOfGroup];
    clear(dq);
#pragma unroll(kRowTiles)
    for (i32 key = 0; key < kBlockN; key += kDepth) {
      Weights<kDepth> w[kTiles];
#pragma unroll
      for (i32 t = 0; t < kTiles; ++t)
        load_transposed<kDepth, kLayout.ds_pitch>(w[t], sm + kLayout.ds + key * kLayout.ds_pitch, row + 16 * t);
      multiply_columns<kDepth, kLayout.qk_pitch, kAcross>(dq, w, sm + kLayout.k + key * kLayout.qk_pitch, group);
    }
    if (first == 0) wait_for_sums(p, x, step, place);
    float* const sums = dq_sums_of(p, place) + sum_tile(row, group * (kGroupColumns / 8));
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      if (kGroups % (kAcross * kAtOnce) != 0 && n * kAcross + group >= kGroups) break;
#pragma unroll
      for (i32 t = 0; t < kTiles; ++t) {
#pragma unroll
        for (i32 e = 0; e < kGroupColumns / 8; ++e)
          add_sums(sums + sum_tile(16 * t, n * kAcross * (kGroupColumns / 8) + e), dq[t] + n * kOfGroup + 4 * e);
      }
    }
  }
  pass_sums(p, x, step, place);
}

// This lane's part of the gradient of a head's slope.
struct SlopeSums {
  float of[backward_features.dslopes ? kScoreTiles : 1] = {};

  DEV auto adder(const KeyScores& scores, i32 r) {
    return [this, &scores, r](i32 row, i32 key, float g) {
      if constexpr (backward_features.dslopes) of[r] -= g * scores.distance(row, key);
    };
  }
  // Heads may have no step.
  DEV void open(const BackwardParams& p, const KeyTile& x) {
    if (opaque_thread() % 32 != 0) return;
    for (i32 head = x.head * p.heads_per_kv; head < (x.head + 1) * p.heads_per_kv; ++head) {
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r)
        *slope_part(p, x, head, x.key + static_cast<i32>(own_keys()) + 16 * r, own_part()) = 0.0f;
    }
  }
  // At a head's last step.
  DEV void flush(const BackwardParams& p, const KeyTile& x, const RowStep& step, const RowStep& next) {
    if (next.head == step.head) return;
#pragma unroll
    for (i32 r = 0; r < kScoreTiles; ++r) {
      const float sum = own_part() < kRowParts * kKeyParts ? warp_sum(of[r]) : 0.0f;  // others: of the same pairs
      if (opaque_thread() % 32 == 0)
        *slope_part(p, x, step.head, x.key + static_cast<i32>(own_score_keys()) + 16 * r, own_part()) = sum;
      of[r] = 0.0f;
    }
  }
};

}  // namespace onepass::sm80
