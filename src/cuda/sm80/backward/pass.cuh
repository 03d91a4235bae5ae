// From a block of query rows to the weights and dS of a warp's keys: the part that all kernels of a backward pass
// share.
#pragma once
#include "cuda/sm80/backward/held.cuh"
#include "cuda/sm80/backward/steps.cuh"

namespace onepass::sm80 {

// Two row tiles: dP's products come first, and exponentials pass under them. Hidden pairs are looked at behind a
// branch.
constexpr bool kDpFirst = kRowTiles == 2;
constexpr bool kHiddenApart = kRowTiles == 2 && !kTransforms && features.bias == ScalarType::none &&
                              !backward_features.dslopes && !backward_features.dbias;

// P and dS of this warp's keys and a piece of its part of a step's rows. behind_s(): when S has been multiplied;
// on_weights(w): what dropout leaves of P, as left operands; add(r): told the gradient by the bias of each score;
// on_ds(w): dS.
template <bool kDs, class BehindS, class OnWeights, class Add, class OnDs>
DEV void pass(const BackwardParams& p, u32 sm, u32 work, const RowStep& step, u32 piece, const HeldValues& values,
              const BehindS& behind_s, const OnWeights& on_weights, const Add& add, const OnDs& on_ds) {
  constexpr i32 kN = kPieceM / 2;
  const u32 part = own_row_part() * kPartM + rows_before(piece);
  const auto first_row = [&] { return step.row() + static_cast<i32>(rows_before(piece)); };
  float s[kScoreTiles][kN], dp[kScoreTiles][kN];
  Weights<kPieceM> w[kScoreTiles];
  Slopes<kN> derivative[kScoreTiles];
  DropoutMask<kN> dropout_mask[kScoreTiles];
  bool some_hidden[kScoreTiles];
  multiply_rows<kQkDepth, kLayout.qk_pitch>(s, step.q(sm) + part * kLayout.qk_pitch,
                                            RowsOf<kLayout.qk_pitch>{sm + kLayout.k});
  behind_s();
  const auto multiply_dout = [&] {
    const u32 dout = step.dout(sm) + part * kLayout.v_pitch;
    const auto multiply = [&](const auto& v) {
      multiply_rows<kOutN, kLayout.v_pitch>(dp, dout, v);
      if constexpr (kLayout.dout_parts == 2)
        multiply_rows<kOutN, kLayout.v_pitch, true>(dp, dout + kLayout.dout_bytes, v);
    };
    if constexpr (config.held)
      multiply(values);
    else
      multiply(RowsOf<kLayout.v_pitch>{sm + kLayout.v});
  };
  if constexpr (kDs && kDpFirst) multiply_dout();
#pragma unroll
  for (i32 r = 0; r < kScoreTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float reference[kN / 2];
    load_statistics(reference, step.statistics(sm) + 4 * part);
    some_hidden[r] = scores.probabilities(s[r], derivative[r], reference, first_row());
    dropout_mask[r] = scores.dropout_mask<kN>(first_row());
    pack_kept(s[r], dropout_mask[r], w[r]);
  }
  on_weights(w);
  if constexpr (!kDs) return;
  if constexpr (!kDpFirst) multiply_dout();
#pragma unroll
  for (i32 r = 0; r < kScoreTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float d[kN / 2];
    load_statistics(d, step.statistics(sm) + 4 * kBlockM + 4 * part);
    scores.differentiate(s[r], dp[r], derivative[r], dropout_mask[r], d,
                         EntropyGradients{step.statistics(sm) + 8 * kBlockM + 4 * part},
                         !kHiddenApart && some_hidden[r], first_row(), add(scores, r));
    if (kHiddenApart && some_hidden[r]) {
#pragma unroll
      for (i32 j = 0; j < kN; ++j) dp[r][j] = is_hidden(s[r][j]) ? 0.0f : dp[r][j];
    }
    pack_kept(dp[r], DropoutMask<kN>::all(), w[r]);
  }
  on_ds(w);
}

}  // namespace onepass::sm80
