#include "reference/textbook_backward.hpp"

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
  const Arguments& a;
  const ConstTensor& d_out;
  DenseGradients& g;

  void operator()(std::int64_t b, std::int64_t kv_head) const {
    const Sequence seq = sequence_of(p, a, b);
    const Rows k = rows_of(a.k, seq.batch, kv_head, seq.k_begin, seq.seq_k, p.dim_qk);
    const Rows v = rows_of(a.v, seq.batch, kv_head, seq.k_begin, seq.seq_k, p.dim_v);
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

  // Score j in the order of docs/conventions.md, and its derivative by the scaled dot product x.
  struct Score {
    double s, slope;
  };
  Score score(const BandMask& band, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, double x) const {
    const auto offset = [&](const ConstTensor& t) {
      const Dims at = broadcast_strides(t);
      return b * at[0] + h * at[1] + i * at[2] + j * at[3];
    };
    const bool hidden = p.bool_mask && static_cast<const std::uint8_t*>(a.bool_mask.data)[offset(a.bool_mask)] == 0;
    if (hidden || !band.visible(i, j)) return {-INFINITY, 0};
    const double cap = static_cast<double>(p.softcap), t = cap > 0 ? std::tanh(x / cap) : 0.0;
    double s = cap > 0 ? cap * t : x;
    if (p.bias) s += static_cast<double>(load_element(a.bias.data, a.bias.dtype, offset(a.bias)));
    if (p.alibi) {
      const ConstTensor& slopes = a.alibi_slopes;
      const std::int64_t at = slopes.rank == 2 ? b * slopes.stride[0] + h * slopes.stride[1] : h * slopes.stride[0];
      s -= static_cast<double>(static_cast<const float*>(slopes.data)[at]) *
           static_cast<double>(std::abs(i + band.shift - j));
    }
    return {s, 1 - t * t};
  }

  void row(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t kv_head, std::int64_t i,
           const std::vector<double>& q, const std::vector<double>& d_o, const Rows& k, const Rows& v) const {
    const BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
    const Dropout dropout = Dropout::of(p.dropout_p, p.seed);
    const std::int64_t n = seq.seq_k;
    std::vector<Score> s(static_cast<std::size_t>(n));
    std::vector<double> weight(s.size()), dp(s.size());
    double m = -INFINITY;
    for (std::int64_t j = 0; j < n; ++j) {
      s[j] = score(band, b, h, i, j, p.effective_scale() * dot(q, k[j]));
      m = std::max(m, s[j].s);
    }
    if (m == -INFINITY) return;
    const double sink_score =
        p.sinks ? static_cast<double>(static_cast<const float*>(a.sinks.data)[h * a.sinks.stride[0]]) : -INFINITY;
    m = std::max(m, sink_score);
    const double sink = std::exp(sink_score - m);
    double l = sink, delta = 0;
    for (std::int64_t j = 0; j < n; ++j) l += weight[j] = std::exp(s[j].s - m);
    for (std::int64_t j = 0; j < n; ++j) {
      weight[j] /= l;
      if (weight[j] == 0) continue;  // an unseen value never enters, be it NaN
      const double z = dropout.active()
                           ? static_cast<double>(dropout.factor(static_cast<unsigned>(b), static_cast<unsigned>(h),
                                                                static_cast<unsigned>(i), static_cast<unsigned>(j)))
                           : 1.0;
      dp[j] = z * dot(d_o, v[j]);
      delta += weight[j] * dp[j];
      double* dv = at(g.dv, seq, true, kv_head, j, p.dim_v);
      for (std::int64_t d = 0; d < p.dim_v; ++d) dv[d] += weight[j] * z * d_o[d];
    }
    if (p.sinks) g.dsinks[h] -= sink / l * delta;
    double* dq = at(g.dq, seq, false, h, i, p.dim_qk);
    for (std::int64_t j = 0; j < n; ++j) {
      if (weight[j] == 0) continue;
      const double ds = weight[j] * (dp[j] - delta);
      if (p.bias) g.dbias[bias_index(a.bias, b, h, i, j)] += ds;
      const double dx = ds * s[j].slope * p.effective_scale();
      double* dk = at(g.dk, seq, true, kv_head, j, p.dim_qk);
      for (std::int64_t d = 0; d < p.dim_qk; ++d) {
        dq[d] += dx * k[j][d];
        dk[d] += dx * q[d];
      }
    }
  }
};

}  // namespace

DenseGradients oracle_backward(const Problem& p, const Arguments& a, const ConstTensor& d_out, Executor& executor) {
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
