// From the products of a tile to the terms of its pairs.
#pragma once
#include "cuda/backward_plain/pair.cuh"
#include "cuda/backward_plain/tile.cuh"

namespace onepass::cuda::backward_plain {

// The terms of a thread's pairs.
struct PairTerms {
  Pairs v, other_v, x, other_x;
};
// Those of the rows from x.row on with the keys from `key` on. kScores: more than V's gradient is wanted. kBias: x
// is the bias's term in place of that of Q and K. side(row, key, term) gets the bias's term of each pair. Products wait
// in shared memory for the math of a few pairs at a time, and terms for the end of it: 16 pairs with their features do
// not fit the registers.
template <bool kScores, bool kBias, class Side>
DEV void find_terms(const PlainBackwardParams& p, u32 sm, const HeadScores& scores, const WorkTile& x, i32 key,
                    PairTerms& t, const Side& side) {
  {
    Pairs product, moved;
    multiply<kInput, kInput, features.dim_qk, true>(
        sm, query_rows(p.q, p.q_stride, x), query_rows(p.tq, p.tq_stride, x), key_rows(p, p.k, p.k_stride, x, key),
        key_rows(p, p.tk, p.tk_stride, x, key), product, moved);
    park(sm, 0, product);
    if constexpr (kTangents) park(sm, 1, moved);
  }
  if constexpr (kScores) {
    Pairs dp, moved_dp;
    multiply<kOutput, kInput, features.dim_v, plain_features.tdout>(
        sm, query_rows(p.dout, p.dout_stride, x), query_rows(p.tdout, p.tdout_stride, x),
        key_rows(p, p.v, p.v_stride, x, key), key_rows(p, p.tv, p.tv_stride, x, key), dp, moved_dp);
    __syncthreads();  // all reads of the operands are done
    park(sm, 2, dp);
    if constexpr (kTangents) park(sm, 3, moved_dp);
  } else {
    __syncthreads();
  }
  constexpr i32 kAtOnce = features.score_mod || features.dropout ? 1 : kPer;
#pragma unroll 1
  for (i32 i = 0; i < kPer; ++i) {
    const i32 row = x.row + thread_row() + kPlainSide * i;
    const RowNumbers r = numbers_of(p, x, row);
    const Band32::Range keys = r.reference == kNegInf ? Band32::Range{0, 0} : scores.band.keys_of(row);
#pragma unroll(kAtOnce)
    for (i32 j = 0; j < kPer; ++j) {
      const i32 at = key + thread_key() + kPlainSide * j;
      bool seen = at >= keys.lo && at < keys.hi;
      if constexpr (features.masks()) seen = seen && !scores.masked(row, at);
      const auto number = [&](i32 tile, bool there) { return there ? load_one(parked_at(sm, tile, i, j)) : 0.0f; };
      Terms one{};
      if (seen)
        one = terms_of(p, scores, r, number(0, true), number(1, kTangents), number(2, kScores),
                       number(3, kScores && kTangents), row, at);
      const auto keep = [&](i32 tile, float term) { store_word(parked_at(sm, tile, i, j), __float_as_int(term)); };
      keep(0, one.v), keep(1, one.other_v), keep(2, kBias ? one.side : one.x), keep(3, one.other_x);
      side(row, at, one.side);
    }
  }
  unpark(sm, 0, t.v), unpark(sm, 1, t.other_v), unpark(sm, 2, t.x), unpark(sm, 3, t.other_x);
  __syncthreads();  // the tiles of pairs are free
}

// True if a kernel on tensor cores has computed block `block` of rows or keys, of which `count` and more exist.
DEV bool is_done(const u32* marks, i64 block, i32 count) {
  if constexpr (plain_features.mark_parts == 0) return false;
  const u32* const own = marks + block * (kBlock / 16 * plain_features.mark_parts);
  u32 some = 0;
  for (i32 i = 0; i < ceil_div(min(count, kBlock), 16) * plain_features.mark_parts; ++i) some |= own[i];
  return some == 0;
}

}  // namespace onepass::cuda::backward_plain
