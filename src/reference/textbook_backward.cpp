#include "reference/textbook_backward.hpp"

#include "core/score.hpp"
#include "reference/two_pass.hpp"

namespace onepass::reference {
namespace {

using Rows = std::vector<std::vector<double>>;  // [tokens][dim]

Rows rows_of(const ConstTensor& t, std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t tokens,
             std::int64_t dim) {
  Rows rows(static_cast<std::size_t>(tokens), std::vector<double>(static_cast<std::size_t>(dim)));
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t at = row_offset(t, batch, head, begin + i);
    for (std::int64_t d = 0; d < dim; ++d) rows[i][d] = static_cast<double>(load_element(t.data, t.dtype, at + d));
  }
  return rows;
}
Rows rows_of(const KeyValueView& view, std::int64_t head, std::int64_t tokens, std::int64_t dim) {
  Rows rows(static_cast<std::size_t>(tokens), std::vector<double>(static_cast<std::size_t>(dim)));
  for (std::int64_t j = 0; j < tokens; ++j) {
    for (std::int64_t d = 0; d < dim; ++d) rows[j][d] = static_cast<double>(view.element(head, j, d));
  }
  return rows;
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
// Row-major index over the dimensions that a bias spans.
std::int64_t bias_index(const ConstTensor& bias, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const Dims at{b, h, i, j};
  std::int64_t index = 0;
  for (int n = 0; n < kMaxRank; ++n) index = index * bias.shape[n] + (bias.shape[n] == 1 ? 0 : at[n]);
  return index;
}

struct Task {
  const Problem& p;
  const Tensors& a;
  const ConstTensor& d_out;
  DenseGradients& g;
  ScoreParams params = score_params(p, a);

  void operator()(std::int64_t b, std::int64_t kv_head) const {
    const Sequence seq = sequence_of(p, a, b);
    const Rows k = rows_of(KeyValueView(a.k, seq), kv_head, seq.seq_k, p.dim_qk);
    const Rows v = rows_of(KeyValueView(a.v, seq), kv_head, seq.seq_k, p.dim_v);
    for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
      const Rows q = rows_of(a.q, seq.batch, h, seq.q_begin, seq.seq_q, p.dim_qk);
      const Rows d_o = rows_of(d_out, seq.batch, h, seq.q_begin, seq.seq_q, p.dim_v);
      for (std::int64_t i = 0; i < seq.seq_q; ++i) row(seq, b, h, kv_head, i, q[i], d_o[i], k, v);
    }
  }

 private:
  double* at(std::vector<double>& grad, const Sequence& s, bool of_keys, std::int64_t head, std::int64_t token,
             std::int64_t dim) const {
    const std::int64_t heads = of_keys ? p.heads_kv : p.heads_q, seq = of_keys ? p.seq_k : p.seq_q;
    const std::int64_t begin = of_keys ? s.k_begin : s.q_begin;
    return grad.data() + dim * (p.varlen ? (begin + token) * heads + head : (s.batch * heads + head) * seq + token);
  }

  void row(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t kv_head, std::int64_t i,
           const std::vector<double>& q, const std::vector<double>& d_o, const Rows& k, const Rows& v) const {
    const HeadScores scores{params, b, h, band_mask(p, seq.seq_q, seq.seq_k)};
    const Dropout dropout = Dropout::of(p.dropout_p, p.seed);
    const std::int64_t n = seq.seq_k;
    std::vector<double> s(static_cast<std::size_t>(n)), slope(s.size()), weight, dp(s.size());
    for (std::int64_t j = 0; j < n; ++j) {
      const Score<double> score = scores.score(dot(q, k[j]), i, j);
      s[j] = score.value;
      slope[j] = score.derivative;
    }
    const Normalizer<double> all = weights_of(s, sink_of<double>(p, a, h), weight);
    if (all.empty) return;
    double delta = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      if (s[j] == Arith<double>::neg_inf()) continue;  // the value of a hidden key never enters, be it NaN
      weight[j] /= all.l;
      const double z = dropout.active()
                           ? static_cast<double>(dropout.factor(static_cast<unsigned>(b), static_cast<unsigned>(h),
                                                                static_cast<unsigned>(i), static_cast<unsigned>(j)))
                           : 1.0;
      dp[j] = z * dot(d_o, v[j]);
      delta += weight[j] * dp[j];
      double* dv = at(g.dv, seq, true, kv_head, j, p.dim_v);
      for (std::int64_t d = 0; d < p.dim_v; ++d) dv[d] += weight[j] * z * d_o[d];
    }
    if (p.sinks) g.dsinks[h] -= all.sink / all.l * delta;
    double* dq = at(g.dq, seq, false, h, i, p.dim_qk);
    for (std::int64_t j = 0; j < n; ++j) {
      if (s[j] == Arith<double>::neg_inf()) continue;
      const double ds = weight[j] * (dp[j] - delta);
      if (p.bias) g.dbias[bias_index(a.bias, b, h, i, j)] += ds;
      const double dx = ds * slope[j] * p.effective_scale();
      double* dk = at(g.dk, seq, true, kv_head, j, p.dim_qk);
      for (std::int64_t d = 0; d < p.dim_qk; ++d) {
        dq[d] += dx * k[j][d];
        dk[d] += dx * q[d];
      }
    }
  }
};

}  // namespace

DenseGradients oracle_backward(const Problem& p, const Tensors& a, const ConstTensor& d_out, Executor& executor) {
  if (!p.score_mod.empty() || !p.mask_mod.empty())
    throw Error(ErrorCode::unsupported, "the backward oracle knows neither score_mod nor mask_mod");
  const std::int64_t rows_q = (p.varlen ? p.total_q : p.batch * p.seq_q) * p.heads_q;
  const std::int64_t rows_k = (p.varlen ? p.total_k : p.batch * p.seq_k) * p.heads_kv;
  const auto zeros = [](std::int64_t count) { return std::vector<double>(static_cast<std::size_t>(count)); };
  DenseGradients g{zeros(rows_q * p.dim_qk), zeros(rows_k * p.dim_qk), zeros(rows_k * p.dim_v),
                   zeros(p.bias ? a.bias.elements() : 0), zeros(p.sinks ? p.heads_q : 0)};
  Task task{p, a, d_out, g};
  auto body = [&](std::int64_t t) { task(t / p.heads_kv, t % p.heads_kv); };
  Executor& used = p.bias || p.sinks ? serial_executor() : executor;
  used.parallel_for(
      p.batch * p.heads_kv, [](void* f, std::int64_t t, int) { (*static_cast<decltype(body)*>(f))(t); }, &body);
  return g;
}

}  // namespace onepass::reference
