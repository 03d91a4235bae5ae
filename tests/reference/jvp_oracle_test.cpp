// The dense float64 derivatives along tangents against differences, in long double, of the forward of
// long_double_forward.hpp.
#include <gtest/gtest.h>

#include <cmath>

#include "arrays.hpp"
#include "reference/gradients.hpp"

namespace onepass::reference {
namespace {

// sum of tO dO and of tLSE dLSE is the derivative of the loss along the tangents; each dO tells it of other elements.
void expect_tangents(const std::string& line, ScoreFunction score_mod = nullptr, SeenFunction mask_mod = nullptr) {
  const Problem p = parse_problem(line);
  const Numbers at(p), along(p, 6);
  const Arrays arrays(at), tangents(along);
  Tensors a = arguments_of(p, at, arrays);
  const Tensors t = arguments_of(p, along, tangents);
  a.tq = t.q, a.tk = t.k, a.tv = t.v, a.tbias = t.bias, a.tsinks = t.sinks;
  const DenseTangents dense = oracle_tangents(p, a);

  Problem with_lse = p;  // the loss then uses the LSE
  with_lse.dlse = p.want_tlse;
  for (unsigned seed = 7; seed < 19; ++seed) {
    const Numbers losses(p, seed);
    const auto loss = [&](int steps) {
      Numbers x = at;
      const Real h = static_cast<Real>(steps) * 0x1p-13L;
      const auto move = [&](std::vector<Real>& of, const std::vector<Real>& by) {
        for (std::size_t i = 0; i < of.size(); ++i) of[i] += h * by[i];
      };
      move(x.q, along.q), move(x.k, along.k), move(x.v, along.v);
      if (p.tbias) move(x.bias, along.bias);
      if (p.tsinks) move(x.sinks, along.sinks);
      x.d_out = losses.d_out, x.d_lse = losses.d_lse;
      return LongDoubleForward{with_lse, x, score_mod, mask_mod}.loss();
    };
    const Real difference = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * 0x1p-13L);
    Real sum = 0, size = 0;
    const auto add = [&](const std::vector<double>& derivative, const std::vector<Real>& of) {
      ASSERT_EQ(derivative.size(), of.size());
      for (std::size_t i = 0; i < of.size(); ++i) {
        const Real product = static_cast<Real>(derivative[i]) * of[i];
        sum += product, size += std::abs(product);
      }
    };
    add(dense.tout.value, losses.d_out);
    if (p.want_tlse) add(dense.tlse.value, losses.d_lse);
    EXPECT_GT(size, 0.1L);
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(difference), 1e-11 * static_cast<double>(size)) << line;
  }
}

TEST(JvpOracle, Plain) { expect_tangents("jvp b2 h2 s3x5 d4/3 fp32 lse tlse"); }
TEST(JvpOracle, GroupsCausalSoftcap) {
  expect_tangents("jvp b1 h4/2 s4x6 d5 fp32 causal_bottom_right softcap=1.5 lse tlse");
}
TEST(JvpOracle, BiasSinksAlibi) {
  expect_tangents("jvp b2 h2 s4 d3 fp32 bias=fp32:1h1k tbias alibi sinks tsinks lse tlse");
}
TEST(JvpOracle, BiasAndSinksWithoutTangents) { expect_tangents("jvp b2 h2 s4 d3 fp32 bias=fp32:1h1k sinks lse tlse"); }
TEST(JvpOracle, BiasThroughSoftcapAndMask) {
  expect_tangents("jvp b1 h2 s4x5 d3 fp32 softcap=2 bias=fp32:1h1k tbias mask=11qk");
}
TEST(JvpOracle, Dropout) { expect_tangents("jvp b1 h2 s5 d3 fp32 dropout=0.4 seed=9 lse tlse"); }
TEST(JvpOracle, ScoreMods) {
  expect_tangents(
      "jvp b1 h2/1 s4x5 d3 fp32 softcap=4 bias=fp32:1h1k tbias alibi "
      "score_mod={score * 2 + 0.25f * score * score} lse tlse",
      [](Real s, auto, auto) { return s * 2 + s * s / 4; });
  expect_tangents("jvp b1 h2 s4x5 d3 fp32 score_mod={exp(score * 0.5f) - log(4 + score * score)}",
                  [](Real s, auto, auto) { return std::exp(s / 2) - std::log(4 + s * s); });
}
TEST(JvpOracle, MaskMod) {
  expect_tangents("jvp b1 h1 s4x6 d3 fp32 mask_mod={k_index % 3 != q_index % 3} lse tlse", nullptr,
                  [](std::int64_t i, std::int64_t j) { return j % 3 != i % 3; });
}
TEST(JvpOracle, Packed) { expect_tangents("jvp h2/1 d3 fp32 varlen=3,0,4/2,3,5 causal_bottom_right"); }
TEST(JvpOracle, RowsWithoutKeysHaveNoDerivative) {
  const Problem p = parse_problem("jvp b1 h1 s5x3 d2 fp32 causal_bottom_right lse tlse");  // rows 0 and 1 see no key
  const Numbers at(p), along(p, 6);
  const Arrays arrays(at), tangents(along);
  Tensors a = arguments_of(p, at, arrays);
  const Tensors t = arguments_of(p, along, tangents);
  a.tq = t.q, a.tk = t.k, a.tv = t.v;
  const DenseTangents dense = oracle_tangents(p, a);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(dense.tout.value[i], 0.0);
  EXPECT_EQ(dense.tlse.value[1], 0.0);
  EXPECT_NE(dense.tlse.value[2], 0.0);
}

}  // namespace
}  // namespace onepass::reference
