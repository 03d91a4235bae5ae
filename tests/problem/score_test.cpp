// From a product to a score: the order of the features, the addresses of side tensors, and the derivative.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "problem/attention/score.hpp"

namespace onepass {
namespace {

struct Call {
  std::vector<float> bias{0.5f, -1.0f, 2.0f, 0.25f, 1.5f, -0.75f};  // [1, 2, 1, 3]: per head and key
  std::vector<std::uint8_t> mask{1, 0, 1, 1};                       // [1, 1, 4, 1]: per row
  std::vector<float> slopes{0.125f, 0.5f, 0.25f, 0.0625f};          // [2, 2]
  Problem p = parse_problem("fwd b2 h2 s4x3 d8 fp32 scale=-0.5 softcap=3 bias=fp32:1h1k mask=11q1 alibi");
  Tensors a;

  Call() {
    a.bias = Tensor(bias.data(), DType::f32, {1, 2, 1, 3});
    a.bool_mask = Tensor(mask.data(), DType::boolean, {1, 1, 4, 1});
    a.alibi_slopes = Tensor(slopes.data(), DType::f32, {2, 2});
  }
};

TEST(Score, FollowsTheOrderOfTheConventions) {
  const Call call;
  const ScoreParams params = score_params(call.p, call.a);
  EXPECT_TRUE(params.transforms());
  EXPECT_TRUE(params.hides());
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const HeadScores scores{params, b, h, band_mask(call.p, 4, 3)};
      for (std::int64_t i = 0; i < 4; ++i) {
        for (std::int64_t j = 0; j < 3; ++j) {
          const Score<double> s = scores.score(7.0, i, j);
          if (i == 1) {
            EXPECT_EQ(s.value, -INFINITY);
            EXPECT_EQ(s.derivative, 0);
            continue;
          }
          const double slope = double{call.slopes[static_cast<std::size_t>(2 * b + h)]};
          const double expected = 3 * std::tanh(-3.5 / 3) + double{call.bias[static_cast<std::size_t>(3 * h + j)]} -
                                  slope * std::abs(static_cast<double>(i - 1 - j));  // aligned bottom-right
          EXPECT_NEAR(s.value, expected, 1e-14);
          EXPECT_EQ(scores.transformed(7.0, i, j), s.value);
          EXPECT_NEAR(static_cast<double>(scores.score(7.0f, i, j).value), expected, 1e-6);
        }
      }
    }
  }
}

TEST(Score, TheDerivativeIsByTheScaledProduct) {
  const Call call;
  const ScoreParams params = score_params(call.p, call.a);
  const HeadScores scores{params, 1, 0, band_mask(call.p, 4, 3)};
  constexpr double kStep = 1e-6;
  for (const double product : {-20.0, -1.0, 0.0, 3.0, 9.0}) {
    const double up = scores.score(product + kStep, 2, 1).value, down = scores.score(product - kStep, 2, 1).value;
    const double by_scaled = (up - down) / (2 * kStep * params.scale);
    EXPECT_NEAR(scores.score(product, 2, 1).derivative, by_scaled, 1e-8);
  }
}

TEST(Score, WithoutFeaturesIsTheScaledProductInTheBand) {
  const Problem p = parse_problem("fwd b1 h1 s3 d16 fp32 causal_top_left");
  const ScoreParams params = score_params(p, Tensors{});
  EXPECT_FALSE(params.transforms());
  EXPECT_FALSE(params.hides());
  const HeadScores scores{params, 0, 0, band_mask(p, 3, 3)};
  EXPECT_EQ(scores.score(8.0, 1, 1).value, 2.0);
  EXPECT_EQ(scores.score(8.0, 1, 1).derivative, 1.0);
  EXPECT_EQ(scores.score(8.0, 1, 2).value, -INFINITY);
}

}  // namespace
}  // namespace onepass
