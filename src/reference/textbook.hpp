// The textbook: S = scores, P = softmax(S), O = P V, two passes over a row of S, every feature of docs/conventions.md.
//
// In double on the given (already rounded) inputs it is the oracle of the tests. In the problem's own precision, with
// S, P and O rounded as they would be stored, it is the base whose error the rule of docs/conventions.md doubles.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/arguments.hpp"
#include "core/expression/scalar.hpp"
#include "core/numerics.hpp"
#include "core/philox.hpp"
#include "core/scalar.hpp"
#include "onepass/executor.hpp"

namespace onepass::reference {

// Dense row-major results: out [batch, heads_q, seq_q, dim_v] (packed: [total_q, heads_q, dim_v]) and lse
// [batch, heads_q, seq_q] (packed: [heads_q, total_q]).
struct Dense {
  std::vector<double> out, lse;
  std::vector<double> top;  // the largest softmax weight of each row, as lse: how far the row is from one-hot
};
std::int64_t dense_out_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);
std::int64_t dense_lse_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);

// Rounds what is stored between the steps.
struct Exact {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
template <class Storage>
struct Stored {
  float operator()(float x) const { return to_float(from_float<Storage>(x)); }
};

// One task: rows [row_lo, row_hi) of one head, over the keys that at least one of them sees. T: arithmetic type.
template <class T, class Round>
struct RowBlock {
  const Problem& p;
  const Arguments& a;
  const Mods& mods;
  Round round;
  Dense& dense;
  std::int64_t batch, head, row_lo, row_hi;  // batch: the entry, also when packed

  Sequence seq = sequence_of(p, a, batch);
  BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
  Range keys = band.key_range(row_lo, row_hi);
  Dropout dropout = Dropout::of(p.dropout_p, p.seed);
  std::vector<T> k{}, v{}, q{}, s{}, o{};  // k transposed, [dim_qk, keys]: the loops over keys vectorise
  std::vector<T> numbers{};                // of the steps of score_mod and mask_mod
  std::vector<std::int32_t> integers{};

  void run() {
    const std::int64_t n = keys.hi - keys.lo;
    std::vector<T> rows(n * p.dim_qk);
    k.resize(n * p.dim_qk);
    v.resize(n * p.dim_v);
    load(a.k, head / p.group(), seq.k_begin + keys.lo, n, p.dim_qk, rows.data());
    load(a.v, head / p.group(), seq.k_begin + keys.lo, n, p.dim_v, v.data());
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t d = 0; d < p.dim_qk; ++d) k[d * n + j] = rows[j * p.dim_qk + d];
    }
    for (std::int64_t i = row_lo; i < row_hi; ++i) row(i);
  }

 private:
  void load(const ConstTensor& t, std::int64_t h, std::int64_t token, std::int64_t count, std::int64_t dim,
            T* into) const {
    with_float_type(t.dtype, [&](auto zero) {
      for (std::int64_t j = 0; j < count; ++j) {
        const auto* from = static_cast<const decltype(zero)*>(t.data) + row_offset(t, seq.batch, h, token + j);
        for (std::int64_t d = 0; d < dim; ++d) into[j * dim + d] = static_cast<T>(to_float(from[d]));
      }
    });
  }

  // s = the row's scores of keys [lo, lo + s.size()), in the order of docs/conventions.md; masked keys get -inf.
  void scores(std::int64_t i, std::int64_t lo) {
    if (s.empty()) return;  // no keys: k is empty too, and no offset into it is defined
    const std::int64_t n = keys.hi - keys.lo, count = static_cast<std::int64_t>(s.size());
    std::fill(s.begin(), s.end(), T(0));
    for (std::int64_t d = 0; d < p.dim_qk; ++d) {
      const T* column = k.data() + d * n + lo - keys.lo;
      for (std::int64_t j = 0; j < count; ++j) s[j] += q[d] * column[j];
    }
    const T scale = static_cast<T>(p.effective_scale()), cap = static_cast<T>(p.softcap);
    for (T& x : s) x *= scale;
    if (p.softcap > 0)
      for (T& x : s) x = cap * std::tanh(x / cap);
    if (p.bias) {
      const Dims at = broadcast_strides(a.bias);
      const std::int64_t from = batch * at[0] + head * at[1] + i * at[2] + lo * at[3];
      for (std::int64_t j = 0; j < count; ++j)
        s[j] += static_cast<T>(load_element(a.bias.data, a.bias.dtype, from + j * at[3]));
    }
    if (p.alibi) {
      const ConstTensor& t = a.alibi_slopes;
      const std::int64_t at = t.rank == 2 ? batch * t.stride[0] + head * t.stride[1] : head * t.stride[0];
      const T slope = static_cast<T>(static_cast<const float*>(t.data)[at]);
      for (std::int64_t j = 0; j < count; ++j) s[j] -= slope * static_cast<T>(std::abs(i + band.shift - (lo + j)));
    }
    if (mods.score.given()) mod(mods.score, i, lo, [&](const auto& run, const auto& tile) { run.change(tile); });
    if (mods.mask.given())
      mod(mods.mask, i, lo, [&](const auto& run, const auto& tile) { run.hide(tile, Arith<T>::neg_inf()); });
    if (p.bool_mask) {
      const Dims at = broadcast_strides(a.bool_mask);
      const auto* from =
          static_cast<const std::uint8_t*>(a.bool_mask.data) + batch * at[0] + head * at[1] + i * at[2] + lo * at[3];
      for (std::int64_t j = 0; j < count; ++j)
        if (from[j * at[3]] == 0) s[j] = Arith<T>::neg_inf();
    }
    for (T& x : s) x = round(x);
  }

  template <class Apply>
  void mod(const Expression& e, std::int64_t i, std::int64_t lo, Apply apply) {
    numbers.resize(e.steps.size() * kExprBlock);
    integers.resize(e.steps.size() * kExprBlock);
    const auto h = static_cast<std::int32_t>(head), row = static_cast<std::int32_t>(i);
    const ExprTile<T> tile{s.data(), 1,  1,   static_cast<std::int64_t>(s.size()), static_cast<std::int32_t>(batch),
                           lo,       &h, &row};
    apply(ExprRun<T, ScalarFunctions>(e, a.mod_buffers, {numbers.data(), integers.data()}), tile);
  }

  void row(std::int64_t i) {
    const Range seen = band.keys_of(i);
    s.resize(seen.lo < seen.hi ? seen.hi - seen.lo : 0);
    q.resize(p.dim_qk);
    load(a.q, head, seq.q_begin + i, 1, p.dim_qk, q.data());
    scores(i, seen.lo);

    // Pass 1: the maximum, then the sum. A row whose scores are all -inf has its sink alone, or nothing.
    T m = Arith<T>::neg_inf(), l = 0;
    for (T x : s) m = Arith<T>::max(m, x);
    const T sink = p.sinks ? static_cast<T>(static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]])
                           : Arith<T>::neg_inf();
    m = Arith<T>::max(m, sink);
    const bool empty = m == Arith<T>::neg_inf();
    m = finite_ref(m);
    // A visible weight is never 0, however small: times an infinite value it must not become NaN.
    for (T& x : s) {
      x = x == Arith<T>::neg_inf() ? T(0) : std::max(std::exp(x - m), std::numeric_limits<T>::min());
      l += x;
    }
    l += std::exp(sink - m);

    // Pass 2: O = P V. A key of weight 0 is masked: its value never enters, be it NaN.
    o.assign(p.dim_v, T(0));
    PhiloxBlock draws{};
    for (std::int64_t c = 0; c < static_cast<std::int64_t>(s.size()); ++c) {
      const std::int64_t j = seen.lo + c;
      if (dropout.active() && (c == 0 || j % 4 == 0)) draws = dropout.draws(batch, head, i, j / 4);
      if (s[c] == 0) continue;
      T w = round(s[c] / l);
      if (dropout.active()) w *= dropout.kept(draws.word[j % 4]) ? static_cast<T>(dropout.keep_scale) : T(0);
      const T* value = v.data() + (j - keys.lo) * p.dim_v;
      for (std::int64_t d = 0; d < p.dim_v; ++d) o[d] += w * value[d];
    }
    double* out = dense.out.data() + dense_out_index(p, seq, head, i);
    for (std::int64_t d = 0; d < p.dim_v; ++d) out[d] = static_cast<double>(round(o[d]));
    const std::int64_t at = dense_lse_index(p, seq, head, i);
    dense.lse[at] = empty ? -INFINITY : static_cast<double>(m + std::log(l));
    dense.top[at] = empty || s.empty() ? 0 : static_cast<double>(*std::max_element(s.begin(), s.end()) / l);
  }
};

// T: arithmetic type; round: how S and P are stored between the steps, and O at the end.
template <class T, class Round>
Dense textbook(const Problem& p, const Arguments& a, Round round, Executor& executor = serial_executor()) {
  constexpr std::int64_t kRows = 64;  // of a task: enough to pay for transposing K
  const std::int64_t entries = p.varlen ? p.total_q : p.batch * p.seq_q;
  Dense dense{std::vector<double>(static_cast<std::size_t>(entries * p.heads_q * p.dim_v)),
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q)),
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q))};
  const Mods mods = mods_of(p);
  const std::int64_t blocks = (p.seq_q + kRows - 1) / kRows;
  auto body = [&](std::int64_t task) {
    const std::int64_t pair = task / blocks, b = pair / p.heads_q, lo = task % blocks * kRows;
    const std::int64_t hi = std::min(lo + kRows, sequence_of(p, a, b).seq_q);
    if (lo < hi) RowBlock<T, Round>{p, a, mods, round, dense, b, pair % p.heads_q, lo, hi}.run();
  };
  executor.parallel_for(
      p.batch * p.heads_q * blocks, [](void* f, std::int64_t task, int) { (*static_cast<decltype(body)*>(f))(task); },
      &body);
  return dense;
}

Dense oracle(const Problem& p, const Arguments& a, Executor& executor = serial_executor());  // double, unrounded
Dense base(const Problem& p, const Arguments& a,
           Executor& executor = serial_executor());  // the problem's own precision

}  // namespace onepass::reference
