// The textbook: S = scores, P = softmax(S), O = P V, two passes over a row of S, every feature of docs/conventions.md.
//
// In double on the given (already rounded) inputs it is the oracle of the tests. In the problem's own precision, with S,
// P and O rounded as they would be stored, it is the base whose error the rule of docs/conventions.md doubles.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/arguments.hpp"
#include "core/numerics.hpp"
#include "core/philox.hpp"
#include "core/scalar.hpp"
#include "onepass/executor.hpp"

namespace onepass::ladder {

// Dense row-major results: out [batch, heads_q, seq_q, dim_v] (packed: [total_q, heads_q, dim_v]) and lse
// [batch, heads_q, seq_q] (packed: [heads_q, total_q]).
struct Dense {
  std::vector<double> out, lse;
};
std::int64_t dense_out_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);
std::int64_t dense_lse_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);

// Rounds what is stored between the steps.
struct Exact {
  template <class T>
  T operator()(T x) const { return x; }
};
template <class Storage>
struct Stored {
  float operator()(float x) const { return to_float(from_float<Storage>(x)); }
};

// One row of scores in the order of docs/conventions.md; masked keys get -inf. T: arithmetic type.
template <class T>
struct ScoreRow {
  const Problem& p;
  const Arguments& a;
  const Sequence& seq;
  std::int64_t batch, head, row;   // batch: the entry, also when packed

  T operator()(std::int64_t key, T dot) const {
    T s = dot * static_cast<T>(p.effective_scale());
    if (p.softcap > 0) s = static_cast<T>(p.softcap) * std::tanh(s / static_cast<T>(p.softcap));
    if (p.bias) s += static_cast<T>(load_element(a.bias.data, a.bias.dtype, spread_at(a.bias, key)));
    const BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
    if (p.alibi) {
      const Tensor& t = a.alibi_slopes;
      const std::int64_t at = t.rank == 2 ? batch * t.stride[0] + head * t.stride[1] : head * t.stride[0];
      s -= static_cast<T>(static_cast<const float*>(t.data)[at]) * static_cast<T>(std::abs(row + band.shift - key));
    }
    const bool seen = band.visible(row, key) &&
                      (!p.bool_mask || static_cast<const std::uint8_t*>(a.bool_mask.data)[spread_at(a.bool_mask, key)] != 0);
    return seen ? s : Arith<T>::neg_inf();
  }

 private:
  std::int64_t spread_at(const Tensor& t, std::int64_t key) const {
    const Dims s = spread_strides(t);
    return batch * s[0] + head * s[1] + row * s[2] + key * s[3];
  }
};

// T: arithmetic type; round: how S and P are stored between the steps, and O at the end.
template <class T, class Round>
Dense textbook(const Problem& p, const Arguments& a, Round round, Executor& executor = serial_executor()) {
  const std::int64_t entries = p.varlen ? p.total_q : p.batch * p.seq_q;
  Dense dense{std::vector<double>(static_cast<std::size_t>(entries * p.heads_q * p.dim_v)),
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q))};
  const Dropout dropout = Dropout::of(p.dropout_p, p.seed);

  const auto head_task = [&](std::int64_t b, std::int64_t h) {
    const Sequence seq = sequence_of(p, a, b);
    const std::int64_t hk = h / p.group(), n = seq.seq_k;
    const auto load = [](const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t token, std::int64_t dim, std::vector<T>& into) {
      into.resize(static_cast<std::size_t>(dim));
      const std::int64_t at = row_offset(t, batch, head, token);
      for (std::int64_t d = 0; d < dim; ++d) into[d] = static_cast<T>(load_element(t.data, t.dtype, at + d));
    };
    std::vector<std::vector<T>> k(n), v(n);
    for (std::int64_t j = 0; j < n; ++j) {
      load(a.k, seq.batch, hk, seq.k_begin + j, p.dim_qk, k[j]);
      load(a.v, seq.batch, hk, seq.k_begin + j, p.dim_v, v[j]);
    }
    std::vector<T> q, s(n), o(p.dim_v);
    for (std::int64_t i = 0; i < seq.seq_q; ++i) {
      load(a.q, seq.batch, h, seq.q_begin + i, p.dim_qk, q);
      const ScoreRow<T> score{p, a, seq, b, h, i};
      RowState<T> state;
      for (std::int64_t j = 0; j < n; ++j) {
        T dot = 0;
        for (std::int64_t d = 0; d < p.dim_qk; ++d) dot += q[d] * k[j][d];
        s[j] = round(score(j, dot));
        state.m = Arith<T>::max(state.m, s[j]);
      }
      const T m = finite_ref(state.m);
      for (T& x : s) {
        x = x == Arith<T>::neg_inf() ? T(0) : std::exp(x - m);
        state.l += x;
      }
      if (p.sinks && !(state.l == 0)) {   // a NaN row stays NaN
        const T sink = static_cast<T>(static_cast<const float*>(a.sinks.data)[h * a.sinks.stride[0]]);
        state.l += std::exp(sink - m);
      }
      const bool empty = state.l == 0;
      std::fill(o.begin(), o.end(), T(0));
      for (std::int64_t j = 0; j < n && !empty; ++j) {
        if (score(j, T(0)) == Arith<T>::neg_inf()) continue;   // an unseen value never enters, be it NaN
        T w = round(s[j] / state.l);
        if (dropout.active()) w *= static_cast<T>(dropout.factor(b, h, i, j));
        for (std::int64_t d = 0; d < p.dim_v; ++d) o[d] += w * v[j][d];
      }
      double* out = dense.out.data() + dense_out_index(p, seq, h, i);
      for (std::int64_t d = 0; d < p.dim_v; ++d) out[d] = static_cast<double>(round(o[d]));
      dense.lse[dense_lse_index(p, seq, h, i)] = empty ? -INFINITY : static_cast<double>(m + std::log(state.l));
    }
  };
  auto body = [&](std::int64_t task) { head_task(task / p.heads_q, task % p.heads_q); };
  executor.parallel_for(p.batch * p.heads_q, [](void* f, std::int64_t task, int) { (*static_cast<decltype(body)*>(f))(task); }, &body);
  return dense;
}

Dense oracle(const Problem& p, const Arguments& a, Executor& executor = serial_executor());   // double, unrounded
Dense base(const Problem& p, const Arguments& a, Executor& executor = serial_executor());     // the problem's own precision

}  // namespace onepass::ladder
