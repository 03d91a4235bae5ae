// From the products of a tile to what its pairs contribute to the gradients, or to the derivatives of these.
#pragma once
#include "algebra/entropy.hpp"
#include "cuda/attention/scores/curve.cuh"
#include "cuda/backward_plain/tile.cuh"

namespace onepass::cuda::backward_plain {

// The numbers of a row: what its weights refer to (-inf: it saw nothing), D, and the derivatives of its LSE and of D.
// Without tangents the third is the gradient of its entropy.
struct RowNumbers {
  float reference, d, moved_lse, moved_d;
  DEV float dentropy() const { return moved_lse; }
};
DEV i64 row_place(const BackwardParams& p, const WorkTile& x, i32 row) {
  return place_of(p, x.head, first_q_block(p, x.batch) + row / kBlock) * (2 * kBlock) + row % kBlock;
}
DEV RowNumbers numbers_of(const PlainBackwardParams& p, const WorkTile& x, i32 row) {
  if (row >= x.seq_q) return {kNegInf, 0.0f, 0.0f, 0.0f};
  const i64 at = row_place(p, x, row);
  return {p.statistics[at], p.statistics[at + kBlock], p.moved[at], p.moved[at + kBlock]};
}

// A score with what its derivatives need: those of score_mod at it (`curve` the second), those of the softcap.
struct CurvedScore {
  float value, slope, curve, inner, inner_curve;
};
DEV CurvedScore curved(const PlainBackwardParams& p, const HeadScores& scores, float product, i32 row, i32 key) {
  if constexpr (!kTransforms) return {product, 1.0f, 0.0f, 1.0f, 0.0f};
  const float x = features.softcap ? tanh_of(p.cap_in * product) : p.scale * product, bias = scores.bias_at(row, key);
  CurvedScore s = {scores.biased(x, bias, row, key), 1.0f, 0.0f, 1.0f, 0.0f};
  if constexpr (features.softcap) {
    s.inner = 1.0f - x * x;
    s.inner_curve = -2.0f * x * s.inner / p.cap_out;
  }
  if constexpr (features.score_mod && kTangents) {
    const user::Curve c = user::score_mod(user::Curve(s.value, 1.0f), static_cast<i32>(scores.batch),
                                          static_cast<i32>(scores.head), row, key, p.mod_buffers);
    s.value = c.value, s.slope = c.slope, s.curve = c.curve;
  } else if constexpr (features.score_mod) {
    const user::Dual d = user::score_mod(user::Dual(s.value, 1.0f), static_cast<i32>(scores.batch),
                                         static_cast<i32>(scores.head), row, key, p.mod_buffers);
    s.value = d.value, s.slope = d.derivative;
  }
  return s;
}

// The contributions of a pair: v times dO and other_v times tdO to V's gradient, x times K or Q and other_x times their
// tangents to those of Q and K, side to that of the bias. All are +0 for a hidden pair; a visible one has -0 in place
// of it.
struct Terms {
  float v, other_v, x, other_x, side;
};
DEV float visible(float x) { return x == 0.0f ? -0.0f : x; }

// product, moved: of Q and K, and its derivative; dp, moved_dp: the same of dO and V.
DEV Terms terms_of(const PlainBackwardParams& p, const HeadScores& scores, const RowNumbers& r, float product,
                   float moved, float dp, float moved_dp, i32 row, i32 key) {
  const CurvedScore s = curved(p, scores, product, row, key);
  if (s.value == kNegInf) return {};
  const float w = probability(p, s.value, r.reference);
  float kept = 1.0f;
  if constexpr (features.dropout) kept = dropout_factor(p.dropout, scores.batch, scores.head, row, key);
  Terms t;
  if constexpr (!kTangents) {
    const float by_entropy = backward_features.dentropy ? r.dentropy() * log_weight(w) : 0.0f,
                ds = w * (dp * kept - r.d - by_entropy) * s.slope;
    return {visible(w * kept), 0.0f, visible(ds * s.inner * p.scale), 0.0f, ds};
  }
  const float by_product = moved * p.scale;
  float inner = by_product * s.inner;  // the derivative of what score_mod finds
  if constexpr (plain_features.tbias)
    inner += element_at<features.bias>(p.tbias, scores.spread(p.tbias_stride, row, key));
  const float moved_w = w * (inner * s.slope - r.moved_lse), off = dp * kept - r.d,
              moved_off = moved_dp * kept - r.moved_d;
  float ds = w * off, moved_ds = fmaf(moved_w, off, w * moved_off);
  if constexpr (features.score_mod) {
    moved_ds = fmaf(moved_ds, s.slope, ds * s.curve * inner);
    ds *= s.slope;
  }
  t.side = moved_ds;
  if constexpr (features.softcap) {
    moved_ds = fmaf(moved_ds, s.inner, ds * s.inner_curve * by_product);
    ds *= s.inner;
  }
  t.v = visible(moved_w * kept), t.other_v = visible(w * kept);
  t.x = visible(moved_ds * p.scale), t.other_x = visible(ds * p.scale);
  return t;
}

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

// True if the packed mask empties the tile of the rows from x.row on with the keys from `key` on.
DEV bool is_empty(const BackwardParams& p, const WorkTile& x, i32 key) {
  if constexpr (features.bool_mask) return mask_tiles(p, x)[key / 32] == kAllMasked;
  return false;
}

}  // namespace onepass::cuda::backward_plain
