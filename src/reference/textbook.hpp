// The textbook: S = scores, P = softmax(S), O = P V, two passes over a row of S, all of docs/reference/conventions.md.
//
// In double on the given (already rounded) inputs it is the oracle of the tests. In the problem's own precision, with
// S, P and O rounded as they would be stored, it is the base of the rule of docs/reference/conventions.md.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "algebra/nonfinite.hpp"
#include "algebra/numerics.hpp"
#include "algebra/philox.hpp"
#include "base/parallel.hpp"
#include "expression/scalar.hpp"
#include "onepass/executor.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/key_value_view.hpp"
#include "problem/attention/score.hpp"
#include "reference/two_pass.hpp"

namespace onepass::reference {

// Dense row-major results: out [batch, heads_q, seq_q, dim_v] (packed: [total_q, heads_q, dim_v]) and lse
// [batch, heads_q, seq_q] (packed: [heads_q, total_q]).
struct Dense {
  std::vector<double> out, lse;
  std::vector<double> top;     // the largest softmax weight of each row, shaped as lse: how far the row is from one-hot
  std::vector<double> square;  // sum of weight * value^2, shaped as out; the oracle of attention and merge alone has it
  std::vector<double> most{};  // the largest score of each row, without a sink; attention alone has it
  // If asked for: each row's entropy, with the sink, and the standard deviation of ln P under the row's weights P.
  std::vector<double> entropy{}, entropy_spread{};
};
std::int64_t dense_out_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);
std::int64_t dense_lse_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row);

// Rounds what is stored between the steps.
struct Exact {
  template <class T>
  T operator()(T x) const {
    return x;
  }
  template <class T>
  T weight(T w, T l) const {  // w / l
    return w / l;
  }
};
template <class Storage>
struct Stored {
  float operator()(float x) const { return to_float(from_float<Storage>(x)); }
  float weight(float w, float l) const { return (*this)(w / l); }
};
// Products of fp8_e4m3: the weights are too, and are divided by their sum after P V. S and O are stored as the output
// is. The largest is not an e4m3 value, because the reference of an online softmax lags behind the row's maximum.
template <class Output>
struct Fp8Weights : Stored<Output> {
  float weight(float w, float l) const {
    constexpr float kLargest = 22.6f;
    return to_float(from_float<f8e4m3>(kLargest * w)) / (kLargest * l);
  }
};

// Products of tf32: the weights are rounded, S and O are fp32.
struct Tf32Weights : Exact {
  float weight(float w, float l) const { return round_to_tf32(w / l); }
};

// One task: rows [row_lo, row_hi) of one head, over the keys that at least one of them sees. T: arithmetic type.
template <class T, class Round>
struct RowBlock {
  const Problem& p;
  const Tensors& a;
  const ScoreParams& params;
  Round round;
  Dense& dense;
  std::int64_t batch, head, row_lo, row_hi;  // batch: the entry, also when packed

  Sequence seq = sequence_of(p, a, batch);
  HeadScores scores{params, batch, head, band_mask(p, seq.seq_q, seq.seq_k)};
  Range keys = scores.band.key_range(row_lo, row_hi);
  Dropout dropout = dropout_of(p, a);
  std::vector<T> k{}, v{}, q{}, s{}, w{}, o{},
      squares{};             // k transposed, [dim_qk, keys]: the loops over keys vectorise
  std::vector<T> numbers{};  // of the steps of score_mod and mask_mod
  std::vector<std::int32_t> integers{};

  void run() {
    const std::int64_t n = keys.hi - keys.lo;
    std::vector<T> rows(n * p.dim_qk);
    k.resize(n * p.dim_qk);
    v.resize(n * p.dim_v);
    load_keys(keys_of(a, seq), p.dim_qk, rows.data());
    load_keys(values_of(a, seq), p.dim_v, v.data());
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t d = 0; d < p.dim_qk; ++d) k[d * n + j] = rows[j * p.dim_qk + d];
    }
    for (std::int64_t i = row_lo; i < row_hi; ++i) row(i);
  }

 private:
  void load_keys(const KeyValueView& view, std::int64_t dim, T* into) const {
    with_float_type(view.dtype(), [&](auto zero) {
      for (std::int64_t j = keys.lo; j < keys.hi; ++j, into += dim)
        load(view.row<decltype(zero)>(head / p.group(), j), dim, view.factor(head / p.group(), j), into);
      into -= (keys.hi - keys.lo) * dim;
      for (std::int64_t j = keys.lo; view.centered() && j < keys.hi; ++j, into += dim)
        for (std::int64_t d = 0; d < dim; ++d) into[d] += static_cast<T>(view.mean(head / p.group(), d));
    });
  }
  template <class Stored>
  void load(const Stored* from, std::int64_t dim, float factor, T* into) const {
    for (std::int64_t d = 0; d < dim; ++d)
      into[d] = operand(p, static_cast<T>(to_float(from[d])) * static_cast<T>(factor));
  }

  // s = the row's scores of keys [lo, lo + s.size()); hidden keys get -inf.
  void score(std::int64_t i, std::int64_t lo) {
    if (s.empty()) return;  // no keys: k is empty too, and no offset into it is defined
    const std::int64_t n = keys.hi - keys.lo, count = static_cast<std::int64_t>(s.size());
    std::fill(s.begin(), s.end(), T(0));
    for (std::int64_t d = 0; d < p.dim_qk; ++d) {
      const T* column = k.data() + d * n + lo - keys.lo;
      for (std::int64_t j = 0; j < count; ++j) s[j] += q[d] * column[j];
    }
    for (std::int64_t j = 0; j < count; ++j) s[j] = scores.transformed(s[j], i, lo + j);
    if (params.mods) modify(i, lo);
    const auto tree = scores.tree_row(i);
    for (std::int64_t j = 0; j < count; ++j)
      s[j] = scores.visible_in_mask(i, lo + j) && scores.tile(i, lo + j) != TileStates::empty && tree.sees(lo + j)
                 ? round(s[j])
                 : Arith<T>::neg_inf();
  }
  void modify(std::int64_t i, std::int64_t lo) {
    const auto h = static_cast<std::int32_t>(head), row = static_cast<std::int32_t>(i);
    const ExprTile<T> tile{s.data(), 1,  1,   static_cast<std::int64_t>(s.size()), static_cast<std::int32_t>(batch),
                           lo,       &h, &row};
    const auto run = [&](const Expression& e) {
      numbers.resize(e.steps.size() * kExprBlock);
      integers.resize(e.steps.size() * kExprBlock);
      return ExprRun<T, ScalarFunctions>(e, a.mod_buffers, {numbers.data(), integers.data()});
    };
    const Mods& mods = *params.mods;
    if (mods.score.given()) run(mods.score).change(tile);
    if (!mods.mask.given()) return;
    const std::vector<T> shown = s;
    run(mods.mask).hide(tile, Arith<T>::neg_inf());
    for (std::size_t j = 0; j < s.size(); ++j)
      if (scores.tile(i, lo + static_cast<std::int64_t>(j)) == TileStates::full) s[j] = shown[j];
  }

  void row(std::int64_t i) {
    const Range visible = scores.band.keys_of(i);
    s.resize(visible.lo < visible.hi ? visible.hi - visible.lo : 0);
    q.resize(p.dim_qk);
    with_float_type(a.q.dtype, [&](auto zero) {
      const auto* from = static_cast<const decltype(zero)*>(a.q.data);
      load(from + row_offset(a.q, seq.batch, head, seq.q_begin + i), p.dim_qk, Descale(a.q_descale, batch).at(head, i),
           q.data());
    });
    score(i, visible.lo);
    const Normalizer<T> all = weights_of<T>(s, sink_of<T>(p, a, head), w);  // pass 1

    // Pass 2: O = P V. The value of a hidden key never enters, be it NaN.
    o.assign(p.dim_v, T(0));
    squares.assign(dense.square.empty() ? 0 : p.dim_v, T(0));
    PhiloxBlock draws{};
    for (std::int64_t c = 0; c < static_cast<std::int64_t>(s.size()); ++c) {
      const std::int64_t j = visible.lo + c;
      if (dropout.active() && (c == 0 || j % 4 == 0)) draws = dropout.draws(batch, head, i, j / 4);
      if (s[c] == Arith<T>::neg_inf()) continue;
      const bool kept = !dropout.active() || dropout.kept(draws.word[j % 4]);
      const T probability = round.weight(w[c], all.l), keep = kept ? static_cast<T>(dropout.keep_scale) : T(0);
      const bool faint = probability < static_cast<T>(kLeastWeight);
      const T* value = v.data() + (j - keys.lo) * p.dim_v;
      for (std::int64_t d = 0; d < p.dim_v; ++d)
        o[d] += (faint ? visible_weight(probability, value[d]) : probability) * keep * value[d];
      for (std::size_t d = 0; d < squares.size(); ++d)
        squares[d] += probability * (keep * value[d]) * (keep * value[d]);
    }
    double* out = dense.out.data() + dense_out_index(p, seq, head, i);
    for (std::int64_t d = 0; d < p.dim_v; ++d) out[d] = static_cast<double>(round(o[d]));
    if (!squares.empty()) std::copy(squares.begin(), squares.end(), dense.square.begin() + (out - dense.out.data()));
    const std::int64_t at = dense_lse_index(p, seq, head, i);
    dense.lse[at] = all.empty ? -INFINITY : static_cast<double>(all.m + std::log(all.l));
    dense.most[at] = static_cast<double>(std::accumulate(s.begin(), s.end(), Arith<T>::neg_inf(), Arith<T>::max));
    if (p.entropy && !all.empty) add_entropy(all, sink_of<T>(p, a, head), at);
    dense.top[at] = all.empty || w.empty() ? 0 : static_cast<double>(*std::max_element(w.begin(), w.end()) / all.l);
  }
  // -sum P ln P, where a weight of 0 adds nothing.
  void add_entropy(const Normalizer<T>& all, T sink, std::int64_t at) {
    T mean = 0, square = 0;
    const auto add = [&](T weight, T score) {
      if (weight == T(0)) return;
      const T probability = weight / all.l, log = score - all.m - std::log(all.l);
      mean += probability * log, square += probability * log * log;
    };
    for (std::size_t j = 0; j < s.size(); ++j) add(w[j], s[j]);
    add(all.sink, sink);
    dense.entropy[at] = static_cast<double>(-mean);
    dense.entropy_spread[at] = static_cast<double>(std::sqrt(std::max(T(0), square - mean * mean)));
  }
};

// T: arithmetic type; round: how S and P are stored between the steps, and O at the end.
template <class T, class Round>
Dense textbook(const Problem& p, const Tensors& a, Round round, Executor& executor = serial_executor()) {
  constexpr std::int64_t kRows = 64;  // of a task: enough to pay for transposing K
  const std::int64_t entries = p.varlen ? p.total_q : p.batch * p.seq_q;
  Dense dense{std::vector<double>(static_cast<std::size_t>(entries * p.heads_q * p.dim_v)),
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q)),
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q)),
              {},
              std::vector<double>(static_cast<std::size_t>(entries * p.heads_q))};
  if (std::is_same_v<T, double>) dense.square.resize(dense.out.size());
  if (p.entropy) dense.entropy.resize(dense.lse.size()), dense.entropy_spread.resize(dense.lse.size());
  const Mods mods = mods_of(p, p.mod_buffers);
  const ScoreParams params = score_params(p, a, &mods);
  const std::int64_t blocks = ceil_div(p.seq_q, kRows);
  parallel(executor, p.batch * p.heads_q * blocks, [&](std::int64_t task, int) {
    const std::int64_t pair = task / blocks, b = pair / p.heads_q, lo = task % blocks * kRows;
    const std::int64_t hi = std::min(lo + kRows, sequence_of(p, a, b).seq_q);
    if (lo < hi) RowBlock<T, Round>{p, a, params, round, dense, b, pair % p.heads_q, lo, hi}.run();
  });
  return dense;
}

Dense oracle(const Problem& p, const Tensors& a, Executor& executor = serial_executor());  // double, unrounded
Dense base(const Problem& p, const Tensors& a,
           Executor& executor = serial_executor());  // the problem's own precision

}  // namespace onepass::reference
