// The weights of a backward pass: from scores and the LSE that was handed in. No maximum is needed any more.
#pragma once
#include "algebra/entropy.hpp"
#include "cuda/attention/backward/tile.cuh"
#include "cuda/attention/scores/score.cuh"

namespace onepass {

// Products of 16-bit elements take one instruction on their way to an exponent, and their rows' references are LSEs in
// log2 units. Otherwise the difference is taken in natural units, where neither rounds before it: references are LSEs.
constexpr bool kFusedWeights = !kTransforms && features.input != ScalarType::f32;

DEV float reference_of(float lse) {  // an empty row's weights are 0
  if (lse == kNegInf) return -kNegInf;
  return kFusedWeights ? lse * static_cast<float>(kLog2e) : lse;
}

// P of (score - LSE) log2(e).
DEV float weight_of(float exponent) { return ex2(exponent); }

// exp(score - LSE); a score in the unit of HeadScores. At most 1, which huge scores would miss by their rounding.
DEV float probability(const AttentionParams& p, float score, float reference) {
  if constexpr (kFusedWeights) return weight_of(min_or_nan(fmaf(score, p.scale_log2, -reference), 0.0f));
  const float natural = !kTransforms ? fmaf(score, p.scale, -reference)
                        : kCapLast   ? fmaf(score, p.cap_out, -reference)
                                     : score - reference;
  return weight_of(min_or_nan(natural * static_cast<float>(kLog2e), 0.0f));
}

// dP - D of a pair less dH ln P. dentropy: as RowStatistics has it.
DEV float less_entropy(float slope, float dentropy, float weight) {
  if constexpr (!backward_features.dentropy) return slope;
  return fmaf(-dentropy, log2_for_product(weight), slope);
}

}  // namespace onepass
