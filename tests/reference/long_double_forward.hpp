// The forward in long double, written from docs/reference/conventions.md alone, but for the dropout's draws
// (algebra/philox.hpp): its differences check the oracle's gradients.
#pragma once
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "algebra/philox.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::reference {

using Real = long double;
// A user's expressions as functions of the score, the query's and the key's index.
using ScoreFunction = std::function<Real(Real, std::int64_t, std::int64_t)>;
using SeenFunction = std::function<bool(std::int64_t, std::int64_t)>;

// Normal numbers for a line; bias [1, heads_q, 1, seq_k], a mask [1, 1, seq_q, seq_k] that hides a quarter.
struct Numbers {
  std::vector<Real> q, k, v, bias, sinks, slopes, d_out, d_lse, d_entropy;
  std::vector<std::uint8_t> seen;
  std::vector<std::int32_t> cu_q, cu_k;

  explicit Numbers(const Problem& p, unsigned seed = 5) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;  // fp32: the oracle can be given the same numbers
    const auto fill = [&](std::int64_t n) {
      std::vector<Real> x(static_cast<std::size_t>(n));
      for (Real& e : x) e = static_cast<Real>(normal(rng));
      return x;
    };
    const std::int64_t tokens_q = p.varlen ? p.total_q : p.batch * p.seq_q,
                       tokens_k = p.varlen ? p.total_k : p.batch * p.seq_k;
    q = fill(tokens_q * p.heads_q * p.dim_qk);
    k = fill(tokens_k * p.heads_kv * p.dim_qk);
    v = fill(tokens_k * p.heads_kv * p.dim_v);
    d_out = fill(tokens_q * p.heads_q * p.dim_v);
    d_lse = fill(tokens_q * p.heads_q);
    bias = fill(p.heads_q * p.seq_k);
    sinks = fill(p.heads_q);
    slopes = fill(p.heads_q);
    d_entropy = fill(tokens_q * p.heads_q);
    for (std::int64_t i = 0; i < p.seq_q * p.seq_k; ++i) seen.push_back(rng() % 4 != 0);
    for (std::int64_t i = 0, a = 0, b = 0; i <= p.batch && p.varlen; ++i) {
      cu_q.push_back(static_cast<std::int32_t>(a));
      cu_k.push_back(static_cast<std::int32_t>(b));
      if (i < p.batch) a += p.lengths_q[static_cast<std::size_t>(i)], b += p.lengths_k[static_cast<std::size_t>(i)];
    }
  }
};

struct LongDoubleForward {
  const Problem& p;
  const Numbers& x;
  ScoreFunction score_mod = nullptr;
  SeenFunction mask_mod = nullptr;

  // sum of O dO and, where the problem says so, of LSE dLSE and of H dH, for the entropy H.
  Real loss() const {
    Real sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const auto entry = static_cast<std::size_t>(b);
      const std::int64_t rows = p.varlen ? p.lengths_q[entry] : p.seq_q;
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t i = 0; i < rows; ++i) sum += row(b, h, i);
    }
    return sum;
  }

 private:
  // Index of a token's first number.
  std::int64_t at(bool of_keys, std::int64_t b, std::int64_t h, std::int64_t token, std::int64_t dim) const {
    const std::int64_t heads = of_keys ? p.heads_kv : p.heads_q, seq = of_keys ? p.seq_k : p.seq_q;
    if (!p.varlen) return ((b * heads + h) * seq + token) * dim;
    return (((of_keys ? x.cu_k : x.cu_q)[static_cast<std::size_t>(b)] + token) * heads + h) * dim;
  }
  Real score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t aligned) const {
    const Real* const q = x.q.data() + at(false, b, h, i, p.dim_qk);
    const Real* const k = x.k.data() + at(true, b, h / p.group(), j, p.dim_qk);
    Real s = 0;
    for (std::int64_t d = 0; d < p.dim_qk; ++d) s += q[d] * k[d];
    s *= static_cast<Real>(p.effective_scale());
    if (p.softcap > 0) s = static_cast<Real>(p.softcap) * std::tanh(s / static_cast<Real>(p.softcap));
    const auto head = static_cast<std::size_t>(h);
    if (p.bias) s += x.bias[static_cast<std::size_t>(h * p.seq_k + j)];
    if (p.alibi) s -= x.slopes[head] * static_cast<Real>(std::abs(aligned - j));
    return score_mod ? score_mod(s, i, j) : s;
  }
  bool visible(std::int64_t i, std::int64_t j, std::int64_t aligned) const {
    return (!p.band.causal || j <= aligned) && (!mask_mod || mask_mod(i, j)) &&
           (!p.bool_mask || x.seen[static_cast<std::size_t>(i * p.seq_k + j)]);
  }
  Real row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const auto entry = static_cast<std::size_t>(b);
    const std::int64_t rows = p.varlen ? p.lengths_q[entry] : p.seq_q, keys = p.varlen ? p.lengths_k[entry] : p.seq_k;
    const std::int64_t aligned = i + keys - rows;  // every line here aligns bottom right
    const Dropout dropout = Dropout::of(p.dropout_p, p.seed);
    std::vector<Real> o(static_cast<std::size_t>(p.dim_v));
    const Real sink = p.sinks ? x.sinks[static_cast<std::size_t>(h)] : Real(0);
    Real sum = p.sinks ? std::exp(sink) : Real(0), of_scores = sum * sink;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!visible(i, j, aligned)) continue;
      const Real s = score(b, h, i, j, aligned), weight = std::exp(s);  // numbers near 1: no maximum is needed
      const Real z = dropout.active()
                         ? static_cast<Real>(dropout.factor(static_cast<unsigned>(b), static_cast<unsigned>(h),
                                                            static_cast<unsigned>(i), static_cast<unsigned>(j)))
                         : Real(1);
      sum += weight, of_scores += weight * s;
      const Real* const v = x.v.data() + at(true, b, h / p.group(), j, p.dim_v);
      for (std::int64_t d = 0; d < p.dim_v; ++d) o[static_cast<std::size_t>(d)] += weight * z * v[d];
    }
    if (sum == 0) return 0;
    Real loss = 0;
    const Real* const d_out = x.d_out.data() + at(false, b, h, i, p.dim_v);
    for (std::int64_t d = 0; d < p.dim_v; ++d) loss += o[static_cast<std::size_t>(d)] / sum * d_out[d];
    const auto row = static_cast<std::size_t>((b * p.heads_q + h) * p.seq_q + i);
    if (p.dlse) loss += std::log(sum) * x.d_lse[row];
    if (p.dentropy) loss += (std::log(sum) - of_scores / sum) * x.d_entropy[row];
    return loss;
  }
};

}  // namespace onepass::reference
