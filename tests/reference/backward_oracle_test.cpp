// The dense float64 gradients against differences, in long double, of a forward that shares only the problem and the
// dropout's random numbers with them.
#include <gtest/gtest.h>

#include <cmath>

#include "arrays.hpp"
#include "reference/gradients.hpp"

namespace onepass::reference {
namespace {

struct Call {
  const Problem p;
  Numbers x{p};
  const Arrays arrays{x};
  ScoreFunction score_mod = nullptr;
  SeenFunction mask_mod = nullptr;

  Tensors arguments() const { return arguments_of(p, x, arrays); }
  ConstTensor d_out() const { return tokens(p, arrays.d_out, p.heads_q, p.seq_q, p.total_q, p.dim_v); }

  // Along one number: four points, whose error is h^4 f'''''/30 = 4e-18 f''''' beside 1e-19 / h of rounding.
  Real difference(Real& number) const {
    const Real kept = number, h = 0x1p-14L;
    const auto at = [&](int steps) {
      number = kept + static_cast<Real>(steps) * h;
      return LongDoubleForward{p, x, score_mod, mask_mod}.loss();
    };
    const Real near = at(1) - at(-1), far = at(2) - at(-2);
    number = kept;
    return (8 * near - far) / (12 * h);
  }
  void expect_matches(std::vector<Real>& numbers, const std::vector<double>& grad, double accepted, const char* name) {
    ASSERT_EQ(numbers.size(), grad.size()) << name;
    Real size = 0;
    for (const double g : grad) size = std::max(size, static_cast<Real>(std::abs(g)));
    EXPECT_GT(size, 0.01L) << name;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      EXPECT_NEAR(static_cast<double>(difference(numbers[i])), grad[i], accepted * static_cast<double>(size))
          << name << "[" << i << "] of " << to_string(p);
  }
  void expect_gradients(const DenseGradients& g, double accepted) {
    expect_matches(x.q, g.dq.value, accepted, "dq");
    expect_matches(x.k, g.dk.value, accepted, "dk");
    expect_matches(x.v, g.dv.value, accepted, "dv");
    if (p.bias) expect_matches(x.bias, g.dbias.value, accepted, "dbias");
    if (p.sinks) expect_matches(x.sinks, g.dsinks.value, accepted, "dsinks");
    if (p.alibi) expect_matches(x.slopes, g.dalibi_slopes.value, accepted, "dalibi_slopes");
  }
};

void expect_gradients(const std::string& line, ScoreFunction score_mod = nullptr, SeenFunction mask_mod = nullptr) {
  Call call{.p = parse_problem(line), .score_mod = std::move(score_mod), .mask_mod = std::move(mask_mod)};
  call.expect_gradients(oracle_backward(call.p, call.arguments(), call.d_out()), 1e-12);
}

TEST(BackwardOracle, Plain) { expect_gradients("fwd b2 h2 s3x5 d4/3 fp32"); }
TEST(BackwardOracle, GroupsCausalSoftcap) {
  expect_gradients("fwd b1 h4/2 s4x6 d5 fp32 causal_bottom_right softcap=1.5");
}
TEST(BackwardOracle, BiasSinksAlibi) { expect_gradients("fwd b2 h2 s4 d3 fp32 bias=fp32:1h1k alibi sinks"); }
TEST(BackwardOracle, BiasThroughSoftcapAndMask) {
  expect_gradients("fwd b1 h2 s4x5 d3 fp32 softcap=2 bias=fp32:1h1k mask=11qk");
}
TEST(BackwardOracle, Dropout) { expect_gradients("fwd b1 h2 s5 d3 fp32 dropout=0.4 seed=9"); }
TEST(BackwardOracle, ScoreMod) {
  const struct {
    const char* text;
    ScoreFunction function;
  } mods[] = {
      {"score * 2 + 0.25f * score * score", [](Real s, auto, auto) { return s * 2 + s * s / 4; }},
      {"3 * tanh(score / 3)", [](Real s, auto, auto) { return 3 * std::tanh(s / 3); }},
      {"exp(score * 0.5f) - log(4 + score * score)",
       [](Real s, auto, auto) { return std::exp(s / 2) - std::log(4 + s * s); }},
      {"score > 0 ? score : 0.125f * score", [](Real s, auto, auto) { return s > 0 ? s : s / 8; }},
      {"sqrt(1 + score * score) / (2 + float(k_index))",
       [](Real s, auto, std::int64_t j) { return std::sqrt(1 + s * s) / static_cast<Real>(2 + j); }},
      {"min(score, 0.5f) + max(score, -0.25f) + exp2(0.375f * score) + log2(3 + abs(score))",
       [](Real s, auto, auto) {
         return std::min(s, 0.5L) + std::max(s, -0.25L) + std::exp2(0.375L * s) + std::log2(3 + std::abs(s));
       }},
      {"score + sqrt(float(q_index - q_index)) * score", [](Real s, auto, auto) { return s; }},
      {"score * (1 + 0.5f * float(q_index - k_index))",
       [](Real s, std::int64_t i, std::int64_t j) { return s * (1 + static_cast<Real>(i - j) / 2); }},
  };
  for (const auto& mod : mods)
    expect_gradients(
        std::string("fwd b1 h2/1 s4x5 d3 fp32 softcap=4 bias=fp32:1h1k alibi score_mod={") + mod.text + "}",
        mod.function);
}
TEST(BackwardOracle, MaskMod) {
  expect_gradients("fwd b1 h1 s4x6 d3 fp32 mask_mod={k_index % 3 != q_index % 3}", nullptr,
                   [](std::int64_t i, std::int64_t j) { return j % 3 != i % 3; });
}
TEST(BackwardOracle, Packed) { expect_gradients("fwd h2/1 d3 fp32 varlen=3,0,4/2,3,5 causal_bottom_right"); }
// O and the LSE are fp32 numbers there, so that D is known to 1e-7 of its terms.
TEST(BackwardOracle, LossesThatUseTheLse) {
  Call call{.p = parse_problem("bwd b1 h2/1 s4x5 d3 fp32 sinks bias=fp32:1h1k dlse grads=dq,dk,dv,dbias,dsinks")};
  Tensors a = call.arguments();
  const Dense dense = oracle(call.p, a);
  const std::vector<float> out(dense.out.begin(), dense.out.end()), lse(dense.lse.begin(), dense.lse.end());
  a.dout = call.d_out();
  a.dlse = ConstTensor(call.arrays.d_lse.data(), DType::f32, {1, 2, 4});
  std::vector<float> kept_out = out, kept_lse = lse;
  a.out = Tensor(kept_out.data(), DType::f32, {1, 2, 4, 3});
  a.lse = Tensor(kept_lse.data(), DType::f32, {1, 2, 4});
  call.expect_gradients(oracle_gradients(call.p, a), 1e-6);
}
TEST(BackwardOracle, LossesThatUseTheEntropy) {
  for (const char* line :
       {"bwd b1 h2/1 s4x5 d3 fp32 sinks bias=fp32:1h1k entropy dentropy dlse grads=dq,dk,dv,dbias,dsinks",
        "bwd b1 h2/1 s4x5 d3 fp32 causal_bottom_right softcap=2 dropout=0.4 seed=9 entropy dentropy"}) {
    Call call{.p = parse_problem(line)};
    Tensors a = call.arguments();
    const Dense dense = oracle(call.p, a);
    std::vector<float> out(dense.out.begin(), dense.out.end()), lse(dense.lse.begin(), dense.lse.end()),
        entropy(dense.entropy.begin(), dense.entropy.end());
    a.dout = call.d_out();
    a.dlse = ConstTensor(call.arrays.d_lse.data(), DType::f32, {1, 2, 4});
    a.dentropy = ConstTensor(call.arrays.d_entropy.data(), DType::f32, {1, 2, 4});
    a.out = Tensor(out.data(), DType::f32, {1, 2, 4, 3});
    a.lse = Tensor(lse.data(), DType::f32, {1, 2, 4});
    a.entropy = Tensor(entropy.data(), DType::f32, {1, 2, 4});
    call.expect_gradients(oracle_gradients(call.p, a), 1e-6);
  }
}
TEST(BackwardOracle, RowsWithoutKeysGiveNothing) {
  const Call call{.p = parse_problem("fwd b1 h1 s5x3 d2 fp32 causal_bottom_right")};  // rows 0 and 1 see no key
  const DenseGradients g = oracle_backward(call.p, call.arguments(), call.d_out());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(g.dq.value[i], 0.0);
}

}  // namespace
}  // namespace onepass::reference
