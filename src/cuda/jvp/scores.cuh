// Scores and their derivatives along the tangents, for fragments and for single pairs.
#pragma once
#include "cuda/attention/scores/scores.cuh"
#include "cuda/jvp/jvp_params.hpp"

namespace onepass::cuda::jvp {

// A bias or a score_mod may make a score -inf: that hides the key, and its derivative counts for nothing, be it NaN.
constexpr bool kHidesByScore = features.bias != ScalarType::none || features.score_mod;

struct Tangent {
  float score, derivative;  // the score in the unit of HeadScores, its derivative in natural units
};

// product: of q and k; moved: the sum of the products with the other's tangent.
DEV Tangent tangent_of(const JvpParams& p, const HeadScores& scores, float product, float moved, i32 row, i32 key) {
  const DerivedScore s = scores.derived(product, scores.bias_at(row, key), row, key);
  float derivative = moved * p.scale;
  if constexpr (kTransforms) derivative *= s.by_product;
  if constexpr (jvp_features.tbias)
    derivative += element_at<features.bias>(p.tbias, scores.spread(p.tbias_stride, row, key)) * s.by_bias;
  return {s.value, derivative};
}

template <bool kByGroups>
struct JvpScores : TileScores<kByGroups> {
  using Base = TileScores<kByGroups>;
  using Base::rows;

  // Products become scores and derivatives; those of hidden keys are 0.
  template <int N>
  DEV void apply_both(const JvpParams& p, float (&s)[N], float (&ds)[N], i32 first, const BeforeScores& known) const {
    const u32 quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (kTransforms) {
        const Tangent t = tangent_of(p, *this, s[j], ds[j], rows.row[row_of_element(j)], first + column_of(j, quad));
        s[j] = t.score, ds[j] = t.derivative;
      } else {
        ds[j] *= p.scale;
      }
    }
    if (Base::hide(s, first, known) || kHidesByScore)
      each(ds, [&](int j, float& x) { x = s[j] == kNegInf ? 0.0f : x; });
  }
};

}  // namespace onepass::cuda::jvp
