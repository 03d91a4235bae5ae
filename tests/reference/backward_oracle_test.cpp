// The dense float64 gradients against central differences of the forward oracle, with every feature that has one.
#include <gtest/gtest.h>

#include <functional>

#include <random>

#include "reference/gradients.hpp"

namespace onepass::reference {
namespace {

struct Call {
  Problem p;
  std::vector<float> q, k, v, d_out, bias, sinks, slopes;
  std::vector<std::uint8_t> seen;
  std::vector<std::int32_t> cu_q, cu_k;

  explicit Call(const std::string& line) : p(parse_problem(line)) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::int64_t n) {
      std::vector<float> x(static_cast<std::size_t>(n));
      for (float& e : x) e = normal(rng);
      return x;
    };
    const std::int64_t tokens_q = p.varlen ? p.total_q : p.batch * p.seq_q,
                       tokens_k = p.varlen ? p.total_k : p.batch * p.seq_k;
    q = fill(tokens_q * p.heads_q * p.dim_qk);
    k = fill(tokens_k * p.heads_kv * p.dim_qk);
    v = fill(tokens_k * p.heads_kv * p.dim_v);
    d_out = fill(tokens_q * p.heads_q * p.dim_v);
    bias = fill(p.heads_q * p.seq_k);  // repeated over batch and rows
    sinks = fill(p.heads_q);
    slopes = fill(p.heads_q);
    for (std::int64_t i = 0; i < p.seq_q * p.seq_k; ++i) seen.push_back(rng() % 4 != 0);
    for (std::int64_t i = 0, a = 0, b = 0; i <= p.batch && p.varlen; ++i) {
      cu_q.push_back(static_cast<std::int32_t>(a));
      cu_k.push_back(static_cast<std::int32_t>(b));
      if (i < p.batch) a += p.lengths_q[static_cast<std::size_t>(i)], b += p.lengths_k[static_cast<std::size_t>(i)];
    }
  }
  ConstTensor tokens(const std::vector<float>& x, std::int64_t heads, std::int64_t seq, std::int64_t total,
                     std::int64_t dim) const {
    return p.varlen ? ConstTensor(x.data(), DType::f32, {total, heads, dim})
                    : ConstTensor(x.data(), DType::f32, {p.batch, heads, seq, dim});
  }
  Tensors arguments() const {
    Tensors a;
    a.q = tokens(q, p.heads_q, p.seq_q, p.total_q, p.dim_qk);
    a.k = tokens(k, p.heads_kv, p.seq_k, p.total_k, p.dim_qk);
    a.v = tokens(v, p.heads_kv, p.seq_k, p.total_k, p.dim_v);
    a.bias = ConstTensor(bias.data(), DType::f32, {1, p.heads_q, 1, p.seq_k});
    a.bool_mask = ConstTensor(seen.data(), DType::boolean, {1, 1, p.seq_q, p.seq_k});
    a.sinks = ConstTensor(sinks.data(), DType::f32, {p.heads_q});
    a.alibi_slopes = ConstTensor(slopes.data(), DType::f32, {p.heads_q});
    a.cu_seqlens_q = ConstTensor(cu_q.data(), DType::i32, {p.batch + 1});
    a.cu_seqlens_k = ConstTensor(cu_k.data(), DType::i32, {p.batch + 1});
    return a;
  }
  double loss() const {
    const std::vector<double> out = oracle(p, arguments()).out;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(d_out[i]);
    return sum;
  }
  DenseGradients gradients() const {
    return oracle_backward(p, arguments(), tokens(d_out, p.heads_q, p.seq_q, p.total_q, p.dim_v));
  }
};

void expect_matches(Call& call, std::vector<float>& x, const std::vector<double>& grad, const char* name) {
  ASSERT_EQ(x.size(), grad.size()) << name;
  double norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float kept = x[i];
    x[i] = kept + 0x1p-10f;
    const double up_x = static_cast<double>(x[i]), up = call.loss();
    x[i] = kept - 0x1p-10f;
    const double down_x = static_cast<double>(x[i]), down = call.loss();
    x[i] = kept;
    EXPECT_NEAR(grad[i], (up - down) / (up_x - down_x), 2e-5) << name << "[" << i << "] of " << to_string(call.p);
    norm += std::abs(grad[i]);
  }
  EXPECT_GT(norm, 0.0) << name;
}

void expect_gradients(const std::string& line) {
  Call call(line);
  const DenseGradients g = call.gradients();
  expect_matches(call, call.q, g.dq.value, "dq");
  expect_matches(call, call.k, g.dk.value, "dk");
  expect_matches(call, call.v, g.dv.value, "dv");
  if (call.p.bias) expect_matches(call, call.bias, g.dbias.value, "dbias");
  if (call.p.sinks) expect_matches(call, call.sinks, g.dsinks.value, "dsinks");
  if (call.p.alibi) expect_matches(call, call.slopes, g.dalibi_slopes.value, "dalibi_slopes");
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
  for (const char* mod :
       {"score * 2 + 0.25f * score * score", "3 * tanh(score / 3)", "exp(score * 0.5f) - log(4 + score * score)",
        "score > 0 ? score : 0.1f * score", "sqrt(1 + score * score) / (2 + float(k_index))",
        "min(score, 0.5f) + max(score, -0.25f) + exp2(0.3f * score) + log2(3 + abs(score))",
        "score + sqrt(float(q_index - q_index)) * score"})
    expect_gradients(std::string("fwd b1 h2/1 s4x5 d3 fp32 softcap=4 bias=fp32:1h1k alibi score_mod={") + mod + "}");
}
TEST(BackwardOracle, MaskMod) { expect_gradients("fwd b1 h1 s4x6 d3 fp32 mask_mod={k_index % 3 != q_index % 3}"); }
TEST(BackwardOracle, Packed) { expect_gradients("fwd h2/1 d3 fp32 varlen=3,0,4/2,3,5 causal_bottom_right"); }
TEST(BackwardOracle, RowsWithoutKeysGiveNothing) {
  Call call("fwd b1 h1 s5x3 d2 fp32 causal_bottom_right");  // rows 0 and 1 see no key
  const DenseGradients g = call.gradients();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(g.dq.value[static_cast<std::size_t>(i)], 0.0);
}

}  // namespace
}  // namespace onepass::reference
