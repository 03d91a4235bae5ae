// From a block of query rows to the weights and dS of a warp's keys: the part that all kernels of a backward pass
// share.
#pragma once
#include "cuda/sm80/backward/steps.cuh"

namespace onepass::sm80 {

// Two row tiles: dP's products come first, and exponentials pass under them. Hidden pairs are looked at behind a
// branch.
constexpr bool kDpFirst = kRowTiles == 2;
constexpr bool kHiddenApart = kRowTiles == 2 && !kTransforms && features.bias == ScalarType::none &&
                              !backward_features.dslopes && !backward_features.dbias;

// P and dS of this warp's keys and its part of a step's rows. on_weights(w): what dropout leaves of P, as left
// operands; add(r): told the gradient by the bias of each score; on_ds(w): dS.
template <bool kDs, class OnWeights, class Add, class OnDs>
DEV void pass(const BackwardParams& p, u32 sm, u32 work, const RowStep& step, const OnWeights& on_weights,
              const Add& add, const OnDs& on_ds) {
  constexpr i32 kN = kPartM / 2;
  const u32 part = own_row_part() * kPartM;
  float s[kRowTiles][kN], dp[kRowTiles][kN];
  Weights<kPartM> w[kRowTiles];
  Slopes<kN> derivative[kRowTiles];
  DropoutMask<kN> dropout_mask[kRowTiles];
  bool some_hidden[kRowTiles];
  multiply_rows<kQkDepth, kLayout.qk_pitch>(s, step.q(sm) + part * kLayout.qk_pitch,
                                            RowsOf<kLayout.qk_pitch>{sm + kLayout.k});
  const auto multiply_dout = [&] {
    const u32 dout = step.dout(sm) + part * kLayout.v_pitch;
    const RowsOf<kLayout.v_pitch> v{sm + kLayout.v};
    multiply_rows<kOutN, kLayout.v_pitch>(dp, dout, v);
    if constexpr (kLayout.dout_parts == 2)
      multiply_rows<kOutN, kLayout.v_pitch, true>(dp, dout + kLayout.dout_bytes, v);
  };
  if constexpr (kDs && kDpFirst) multiply_dout();
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float reference[kN / 2];
    load_statistics(reference, step.statistics(sm) + 4 * part);
    some_hidden[r] = scores.probabilities(s[r], derivative[r], reference, step.row());
    dropout_mask[r] = scores.dropout_mask<kN>(step.row());
    pack_kept(s[r], dropout_mask[r], w[r]);
  }
  on_weights(w);
  if constexpr (!kDs) return;
  if constexpr (!kDpFirst) multiply_dout();
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float d[kN / 2];
    load_statistics(d, step.statistics(sm) + 4 * kBlockM + 4 * part);
    scores.differentiate(s[r], dp[r], derivative[r], dropout_mask[r], d, !kHiddenApart && some_hidden[r], step.row(),
                         add(scores, r));
    if (kHiddenApart && some_hidden[r]) {
#pragma unroll
      for (i32 j = 0; j < kN; ++j) dp[r][j] = is_hidden(s[r][j]) ? 0.0f : dp[r][j];
    }
    pack_kept(dp[r], DropoutMask<kN>::all(), w[r]);
  }
  on_ds(w);
}

}  // namespace onepass::sm80
