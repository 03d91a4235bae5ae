// One pair: from its products to what it contributes to the gradients, or to the derivatives of these.
#pragma once
#include "algebra/entropy.hpp"
#include "cuda/attention/backward/score.cuh"
#include "cuda/attention/scores/curve.cuh"
#include "cuda/backward_plain/config.hpp"

namespace onepass::cuda::backward_plain {

static_assert(kBlockQ == kBlockK);
constexpr i32 kBlock = kBlockQ;  // rows and keys of a tile
constexpr bool kTangents = plain_features.tangents;
constexpr ScalarType kInput = features.input, kOutput = forward_features.output;

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
// tangents to those of Q and K, side to that of the bias. All are +0 for a hidden pair; with kSigned a visible one has
// -0 in place of it.
struct Terms {
  float v, other_v, x, other_x, side;
};
template <bool kSigned>
DEV float visible(float x) {
  return kSigned && x == 0.0f ? -0.0f : x;
}

// product, moved: of Q and K, and its derivative; dp, moved_dp: the same of dO and V. Tensor cores take terms that are
// not signed: those of many pairs at once, which a branch for each would order. Without transforms a score of -inf
// comes from an operand that is not finite, and what such a block becomes is computed again.
template <bool kSigned = true>
DEV Terms terms_of(const PlainBackwardParams& p, const HeadScores& scores, const RowNumbers& r, float product,
                   float moved, float dp, float moved_dp, i32 row, i32 key) {
  const CurvedScore s = curved(p, scores, product, row, key);
  if constexpr (kSigned) {
    if (s.value == kNegInf) return {};
  }
  const float w = probability(p, s.value, r.reference);
  float kept = 1.0f;
  if constexpr (features.dropout) kept = dropout_factor(p.dropout, scores.batch, scores.head, row, key);
  Terms t;
  if constexpr (!kTangents) {
    const float by_entropy = backward_features.dentropy ? r.dentropy() * log_weight(w) : 0.0f,
                ds = w * (dp * kept - r.d - by_entropy) * s.slope;
    return {visible<kSigned>(w * kept), 0.0f, visible<kSigned>(ds * s.inner * p.scale), 0.0f, ds};
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
  t.v = visible<kSigned>(moved_w * kept), t.other_v = visible<kSigned>(w * kept);
  t.x = visible<kSigned>(moved_ds * p.scale), t.other_x = visible<kSigned>(ds * p.scale);
  if constexpr (!kSigned && kTransforms) t = s.value == kNegInf ? Terms{} : t;
  return t;
}

// True if the packed mask empties the tile of the 64 rows about x.row with the kBlock keys from `key` on, a multiple.
DEV bool is_empty(const BackwardParams& p, const WorkTile& x, i32 key) {
  if constexpr (features.bool_mask) return mask_tiles(p, x)[key / 32] == kAllMasked;
  return false;
}

}  // namespace onepass::cuda::backward_plain
