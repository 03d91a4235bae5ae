// The dense float64 derivatives of gradients along tangents against mixed second differences, in long double, of the
// forward of long_double_forward.hpp.
#include <gtest/gtest.h>

#include <cmath>

#include "arrays.hpp"
#include "reference/gradients.hpp"

namespace onepass::reference {
namespace {

constexpr Real kStep = 0x1p-12L;

// Four points: the error is of the order of kStep^4 beside rounding.
template <class F>
Real difference(F f) {
  return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * kStep);
}
void move(std::vector<Real>& of, const std::vector<Real>& by, int steps) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] += static_cast<Real>(steps) * kStep * by[i];
}

// The sum over all results of tdx w_x is the derivative, along the tangents and along w, of the loss.
void expect_second(const std::string& line, SeenFunction mask_mod = nullptr, ScoreFunction score_mod = nullptr) {
  const Problem p = parse_problem(line);
  const Numbers at(p), along(p, 6);
  const Arrays arrays(at), tangents(along);
  Tensors a = arguments_of(p, at, arrays);
  const Tensors t = arguments_of(p, along, tangents);
  a.tq = t.q, a.tk = t.k, a.tv = t.v, a.tbias = t.bias, a.tsinks = t.sinks;
  const auto out = [&](const std::vector<float>& x) { return tokens(p, x, p.heads_q, p.seq_q, p.total_q, p.dim_v); };
  const auto rows = [&](const std::vector<float>& x) {
    return ConstTensor(x.data(), DType::f32, {p.batch, p.heads_q, p.seq_q});
  };
  a.dout = out(arrays.d_out), a.tdout = out(tangents.d_out);
  a.dlse = rows(arrays.d_lse), a.tdlse = rows(tangents.d_lse);
  const DenseGradients dense = oracle_double_backward(p, a);

  for (unsigned seed = 7; seed < 15; ++seed) {
    const Numbers w(p, seed);
    const auto along_w = [&](Numbers x) {
      return difference([&](int steps) {
        Numbers y = x;
        move(y.q, w.q, steps), move(y.k, w.k, steps), move(y.v, w.v, steps);
        if (p.gradients.dbias) move(y.bias, w.bias, steps);
        if (p.gradients.dsinks) move(y.sinks, w.sinks, steps);
        if (p.gradients.dalibi_slopes) move(y.slopes, w.slopes, steps);
        return LongDoubleForward{p, y, score_mod, mask_mod}.loss();
      });
    };
    const Real both = difference([&](int steps) {
      Numbers x = at;
      move(x.q, along.q, steps), move(x.k, along.k, steps), move(x.v, along.v, steps);
      if (p.tbias) move(x.bias, along.bias, steps);
      if (p.tsinks) move(x.sinks, along.sinks, steps);
      if (p.tdout) move(x.d_out, along.d_out, steps);
      if (p.tdlse) move(x.d_lse, along.d_lse, steps);
      return along_w(x);
    });
    Real sum = 0, size = 0;
    const auto add = [&](const DenseGradient& derivative, const std::vector<Real>& of) {
      ASSERT_EQ(derivative.value.size(), of.size());
      for (std::size_t i = 0; i < of.size(); ++i) {
        const Real product = static_cast<Real>(derivative.value[i]) * of[i];
        sum += product, size += std::abs(product);
      }
    };
    add(dense.dq, w.q), add(dense.dk, w.k), add(dense.dv, w.v);
    if (p.gradients.dbias) add(dense.dbias, w.bias);
    if (p.gradients.dsinks) add(dense.dsinks, w.sinks);
    if (p.gradients.dalibi_slopes) add(dense.dalibi_slopes, w.slopes);
    EXPECT_GT(size, 0.1L);
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(both), 1e-10 * static_cast<double>(size)) << line;
  }
}

TEST(SecondOracle, Plain) { expect_second("bwd_jvp b2 h2 s3x5 d4/3 fp32 tdout dlse tdlse"); }
TEST(SecondOracle, WithoutTangentsOfTheGradients) { expect_second("bwd_jvp b2 h2 s3x5 d4/3 fp32 dlse"); }
TEST(SecondOracle, ALseThatIsUsedAlongTheTangentsAlone) { expect_second("bwd_jvp b1 h2 s3x5 d4 fp32 dlse tdlse"); }
TEST(SecondOracle, GroupsCausalSoftcap) {
  expect_second("bwd_jvp b1 h4/2 s4x6 d5 fp32 causal_bottom_right softcap=1.5 tdout dlse tdlse");
}
TEST(SecondOracle, BiasSinksAlibi) {
  expect_second(
      "bwd_jvp b2 h2 s4 d3 fp32 bias=fp32:1h1k tbias alibi sinks tsinks tdout dlse "
      "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes");
}
TEST(SecondOracle, BiasAndSinksWithoutTangents) {
  expect_second("bwd_jvp b2 h2 s4 d3 fp32 bias=fp32:1h1k sinks tdout grads=dq,dk,dv,dbias,dsinks");
}
TEST(SecondOracle, BiasThroughSoftcapAndMask) {
  expect_second("bwd_jvp b1 h2 s4x5 d3 fp32 softcap=2 bias=fp32:1h1k tbias mask=11qk tdout grads=dq,dk,dv,dbias");
}
TEST(SecondOracle, Dropout) { expect_second("bwd_jvp b1 h2 s5 d3 fp32 dropout=0.4 seed=9 tdout dlse tdlse"); }
TEST(SecondOracle, MaskMod) {
  expect_second("bwd_jvp b1 h1 s4x6 d3 fp32 mask_mod={k_index % 3 != q_index % 3} tdout",
                [](std::int64_t i, std::int64_t j) { return j % 3 != i % 3; });
}
TEST(SecondOracle, ScoreMods) {
  expect_second(
      "bwd_jvp b1 h2/1 s4x5 d3 fp32 softcap=4 bias=fp32:1h1k tbias alibi "
      "score_mod={score * 2 + 0.25f * score * score} tdout dlse tdlse grads=dq,dk,dv,dbias,dalibi_slopes",
      nullptr, [](Real s, auto, auto) { return s * 2 + s * s / 4; });
  expect_second("bwd_jvp b1 h2 s4x5 d3 fp32 score_mod={exp(score * 0.5f) - log(4 + score * score)} tdout", nullptr,
                [](Real s, auto, auto) { return std::exp(s / 2) - std::log(4 + s * s); });
  expect_second("bwd_jvp b1 h2 s4x5 d3 fp32 score_mod={2 * tanh(score * 0.5f) / sqrt(1 + score * score) + sin(score)}",
                nullptr, [](Real s, auto, auto) { return 2 * std::tanh(s / 2) / std::sqrt(1 + s * s) + std::sin(s); });
}
TEST(SecondOracle, Packed) { expect_second("bwd_jvp h2/1 d3 fp32 varlen=3,0,4/2,3,5 causal_bottom_right tdout"); }

}  // namespace
}  // namespace onepass::reference
