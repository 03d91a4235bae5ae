#include <cmath>
#include <type_traits>

#include "reference/derivatives/head_gradients.hpp"

namespace onepass::reference {
namespace {

// LSE, D and their derivatives by dense_lse_index, and the sums of the sizes of the terms of D and tD.
struct SecondStatistics {
  std::vector<double> lse, tlse, delta, delta_terms, tdelta, tdelta_terms;
};

double number_of(const ConstTensor& t, const Sequence& seq, std::int64_t h, std::int64_t i) {
  return static_cast<double>(load_element(t.data, DType::f32, lse_offset(t, seq.batch, h, seq.q_begin + i)));
}

// O, tO, LSE and tLSE of a row: as the call has them, or as the oracle computes them.
struct GivenResults {
  const Problem& p;
  const Tensors& a;

  std::vector<double> row(const ConstTensor& t, const Sequence& seq, std::int64_t h, std::int64_t i) const {
    return numbers_of<double>(t, row_offset(t, seq.batch, h, seq.q_begin + i), p.dim_v);
  }
  std::vector<double> out(const Sequence& seq, std::int64_t h, std::int64_t i) const { return row(a.out, seq, h, i); }
  std::vector<double> tout(const Sequence& seq, std::int64_t h, std::int64_t i) const { return row(a.tout, seq, h, i); }
  double lse(const Sequence& seq, std::int64_t h, std::int64_t i) const { return number_of(a.lse, seq, h, i); }
  double tlse(const Sequence& seq, std::int64_t h, std::int64_t i) const { return number_of(a.tlse, seq, h, i); }
};
struct OwnResults {
  const Problem& p;
  const Dense forward;
  const DenseTangents tangents;

  std::vector<double> row(const std::vector<double>& all, const Sequence& seq, std::int64_t h, std::int64_t i) const {
    const auto from = all.begin() + dense_out_index(p, seq, h, i);
    return {from, from + p.dim_v};
  }
  std::vector<double> out(const Sequence& seq, std::int64_t h, std::int64_t i) const {
    return row(forward.out, seq, h, i);
  }
  std::vector<double> tout(const Sequence& seq, std::int64_t h, std::int64_t i) const {
    return row(tangents.tout.value, seq, h, i);
  }
  double lse(const Sequence& seq, std::int64_t h, std::int64_t i) const {
    return forward.lse[static_cast<std::size_t>(dense_lse_index(p, seq, h, i))];
  }
  double tlse(const Sequence& seq, std::int64_t h, std::int64_t i) const {
    return tangents.tlse.value[static_cast<std::size_t>(dense_lse_index(p, seq, h, i))];
  }
};

// A number of O or tO that is exactly 0 stands for no visible key, whatever is multiplied with it.
template <class Results>
SecondStatistics second_statistics(const Problem& p, const Tensors& a, const Results& results) {
  const std::vector<double> none(static_cast<std::size_t>((p.varlen ? p.total_q : p.batch * p.seq_q) * p.heads_q));
  SecondStatistics s{none, none, none, none, none, none};
  for_each_row(p, a, [&](const Sequence& seq, std::int64_t h, std::int64_t i, std::int64_t at) {
    const auto row = [&](const ConstTensor& t) {
      return numbers_of<double>(t, row_offset(t, seq.batch, h, seq.q_begin + i), p.dim_v);
    };
    const auto add = [&](const std::vector<double>& gradient, const std::vector<double>& result,
                         std::vector<double>& sum, std::vector<double>& terms) {
      for (std::size_t d = 0; d < result.size(); ++d) {
        const double product = result[d] == 0 ? 0 : gradient[d] * result[d];
        sum[at] += product, terms[at] += std::abs(product);
      }
    };
    const std::vector<double> d_out = row(a.dout), out = results.out(seq, h, i);
    s.lse[at] = results.lse(seq, h, i), s.tlse[at] = results.tlse(seq, h, i);
    add(d_out, out, s.delta, s.delta_terms);
    add(d_out, results.tout(seq, h, i), s.tdelta, s.tdelta_terms);
    if (p.tdout) add(row(a.tdout), out, s.tdelta, s.tdelta_terms);
    const auto take = [&](const ConstTensor& t, std::vector<double>& sum, std::vector<double>& terms) {
      const double x = number_of(t, seq, h, i);
      sum[at] -= x, terms[at] += std::abs(x);
    };
    if (p.dlse) take(a.dlse, s.delta, s.delta_terms);
    if (p.tdlse) take(a.tdlse, s.tdelta, s.tdelta_terms);
  });
  return s;
}

// A number and the sum of the sizes of its terms.
template <class T>
struct Sized {
  T value = 0, size = 0;

  void add(T x) { value += x, size += std::abs(x); }
  Sized times(T x) const { return {value * x, size * std::abs(x)}; }
};

// One K/V head of one batch entry with all its query heads. T: arithmetic type; round: how P, dP, dS and their
// derivatives are stored.
template <class T, class Round>
class HeadSecond : ScoredKeys<T> {
  using Base = ScoredKeys<T>;
  using Base::a_, Base::batch_, Base::inner_, Base::k_, Base::kv_head_, Base::outer_, Base::p_, Base::params_, Base::s_,
      Base::seq_, Base::v_;

 public:
  HeadSecond(const Problem& p, const Tensors& a, const SecondStatistics& rows, const ScoreParams& params, Round round,
             DenseGradients& g, std::mutex& shared, std::int64_t batch, std::int64_t kv_head)
      : Base(p, a, params, batch, kv_head), rows_(rows), round_(round), g_(g), shared_(shared) {}

  void run() {
    this->load_keys(a_.k, p_.dim_qk, k_);
    this->load_keys(a_.v, p_.dim_v, v_);
    this->load_keys(a_.tk, p_.dim_qk, tk_);
    this->load_keys(a_.tv, p_.dim_v, tv_);
    for (std::int64_t h = kv_head_ * p_.group(); h < (kv_head_ + 1) * p_.group(); ++h)
      for (std::int64_t i = 0; i < seq_.seq_q; ++i) row(h, i);
  }

 private:
  // The row's numbers.
  struct Row {
    std::vector<T> q, tq, d_o, td_o;  // td_o: 0 where it is not given
    T lse, tlse;
    Sized<T> delta, tdelta;
  };
  // scale tq . k and its like, added up.
  static void add_products(Sized<T>& sum, const std::vector<T>& a, const T* b, T factor) {
    for (std::size_t d = 0; d < a.size(); ++d) sum.add(factor * a[d] * b[d]);
  }
  void sink(std::int64_t h, const Row& r) {
    const T weight = std::exp(sink_of<T>(p_, a_, h) - r.lse),
            t = p_.tsinks ? static_cast<T>(static_cast<const float*>(a_.tsinks.data)[h * a_.tsinks.stride[0]]) : T(0);
    const std::lock_guard lock(shared_);
    add_term(g_.dsinks, h, -weight * ((t - r.tlse) * r.delta.value + r.tdelta.value),
             weight * ((std::abs(t) + std::abs(r.tlse)) * r.delta.size + r.tdelta.size), T(0));
  }

  void row(std::int64_t h, std::int64_t i) {
    const std::int64_t at = dense_lse_index(p_, seq_, h, i);
    const auto numbers = [&](const ConstTensor& t, std::int64_t dim) {
      return operands_of<T>(p_, t, row_offset(t, seq_.batch, h, seq_.q_begin + i), dim);
    };
    const auto of = [&](const std::vector<double>& x) { return static_cast<T>(x[static_cast<std::size_t>(at)]); };
    const Row r{numbers(a_.q, p_.dim_qk),
                numbers(a_.tq, p_.dim_qk),
                numbers(a_.dout, p_.dim_v),
                p_.tdout ? numbers(a_.tdout, p_.dim_v) : std::vector<T>(static_cast<std::size_t>(p_.dim_v)),
                of(rows_.lse),
                of(rows_.tlse),
                {of(rows_.delta), of(rows_.delta_terms)},
                {of(rows_.tdelta), of(rows_.tdelta_terms)}};
    if (r.lse == Arith<T>::neg_inf()) return;  // neither a key nor a sink
    if (p_.sinks) sink(h, r);
    const HeadScores scores{params_, batch_, h, band_mask(p_, seq_.seq_q, seq_.seq_k)};
    const Range seen = scores.band.keys_of(i);
    if (seen.lo >= seen.hi) return;
    const auto n = static_cast<std::size_t>(seen.hi - seen.lo);
    s_.resize(n), inner_.resize(n), outer_.resize(n);
    this->score(scores, r.q, h, i, seen.lo);
    curve(scores, r.q, h, i, seen.lo);
    for (std::size_t c = 0; c < n; ++c)  // what a hidden key holds never enters, be it NaN
      if (s_[c] != Arith<T>::neg_inf()) pair(scores, r, h, i, seen.lo, c);
  }

  // The second derivatives of score_mod, 0 without one.
  void curve(const HeadScores& scores, const std::vector<T>& q, std::int64_t h, std::int64_t i, std::int64_t lo) {
    curve_.assign(s_.size(), T(0));
    if (!params_.mods || !params_.mods->score.given() || s_.empty()) return;
    using D = Dual<Dual<T>>;
    const Expression& e = params_.mods->score;
    std::vector<D> tile(s_.size()), numbers(e.steps.size() * kExprBlock);
    std::vector<std::int32_t> integers(e.steps.size() * kExprBlock);
    for (std::size_t c = 0; c < tile.size(); ++c) {
      const std::int64_t j = lo + static_cast<std::int64_t>(c);
      tile[c] = D({scores.transformed(dot(q, k_.data() + j * p_.dim_qk), i, j), T(1)}, {T(1), T(0)});
    }
    const auto head = static_cast<std::int32_t>(h), row = static_cast<std::int32_t>(i);
    ExprRun<D, DualFunctions<DualFunctions<ScalarFunctions>>>(e, a_.mod_buffers, {numbers.data(), integers.data()})
        .change({tile.data(), 1, 1, static_cast<std::int64_t>(tile.size()), static_cast<std::int32_t>(batch_), lo,
                 &head, &row});
    for (std::size_t c = 0; c < tile.size(); ++c) curve_[c] = tile[c].derivative.derivative;
  }

  // Key c of those that begin at `lo`.
  void pair(const HeadScores& scores, const Row& r, std::int64_t h, std::int64_t i, std::int64_t lo, std::size_t c) {
    const std::int64_t j = lo + static_cast<std::int64_t>(c);
    const T s = s_[c], slope = inner_[c], outer = outer_[c];  // the derivatives of the softcap and of score_mod
    const T *k = k_.data() + j * p_.dim_qk, *tk = tk_.data() + j * p_.dim_qk, *v = v_.data() + j * p_.dim_v,
            *tv = tv_.data() + j * p_.dim_v, scale = static_cast<T>(p_.effective_scale());
    Sized<T> tx, dp, tdp;
    add_products(tx, r.tq, k, scale), add_products(tx, r.q, tk, scale);
    Sized<T> tt = tx.times(slope);
    if (p_.tbias) {
      const Dims b = broadcast_strides(a_.tbias);
      tt.add(
          static_cast<T>(load_element(a_.tbias.data, a_.tbias.dtype, batch_ * b[0] + h * b[1] + i * b[2] + j * b[3])));
    }
    const Sized<T> ts = tt.times(outer);
    const Dropout dropout = dropout_of(p_, a_);
    const T z = dropout.active()
                    ? static_cast<T>(dropout.factor(static_cast<unsigned>(batch_), static_cast<unsigned>(h),
                                                    static_cast<unsigned>(i), static_cast<unsigned>(j)))
                    : T(1);
    add_products(dp, r.d_o, v, z);
    add_products(tdp, r.d_o, tv, z);
    if (p_.tdout) add_products(tdp, r.td_o, v, z);
    dp.value = round_(dp.value), tdp.value = round_(tdp.value);

    const T w = round_(std::exp(s - r.lse)), tw = round_(w * (ts.value - r.tlse)),
            tw_size = w * (ts.size + std::abs(r.tlse));
    const T off = dp.value - r.delta.value, toff = tdp.value - r.tdelta.value, off_size = dp.size + r.delta.size;
    const Sized<T> ds{round_(w * off), w * off_size},
        tds{round_(tw * off + w * toff), tw_size * off_size + w * (tdp.size + r.tdelta.size)};
    // The sizes of what is rounded on the way to dS and tdS.
    const T rounded = w * (std::abs(dp.value) + 2 * std::abs(off)),
            trounded = std::abs(tw) * (std::abs(dp.value) + 2 * std::abs(off)) +
                       w * (std::abs(tdp.value) + 2 * std::abs(toff));
    const std::int64_t to_v = dense_gradient_index(p_, seq_, true, kv_head_, j, p_.dim_v);
    for (std::int64_t d = 0; d < p_.dim_v; ++d) {
      add_term(g_.dv, to_v + d, round_(tw * z) * r.d_o[d], tw_size * z * r.d_o[d], tw * z * r.d_o[d]);
      if (p_.tdout) add_term(g_.dv, to_v + d, round_(w * z) * r.td_o[d], w * z * r.td_o[d], w * z * r.td_o[d]);
    }
    const Sized<T> dt = ds.times(outer);
    Sized<T> tdt = tds.times(outer);
    tdt.value += ds.value * curve_[c] * tt.value, tdt.size += std::abs(ds.size * curve_[c] * tt.size);
    if (p_.bias || p_.alibi)
      side(scores, h, i, j, tdt, trounded * std::abs(outer) + rounded * std::abs(curve_[c] * tt.value));
    Sized<T> dx = dt.times(slope * scale), tdx = tdt.times(slope * scale);
    if (p_.softcap > 0) {  // the tanh is known to its own size alone where it is small
      const T cap = static_cast<T>(p_.softcap), steep = T(-2) * slope / cap;
      tdx.value += dt.value * steep * std::tanh(scale * dot(r.q, k) / cap) * tx.value * scale;
      tdx.size += std::abs(dt.size * steep * tx.size * scale);
    }
    const std::int64_t to_q = dense_gradient_index(p_, seq_, false, h, i, p_.dim_qk),
                       to_k = dense_gradient_index(p_, seq_, true, kv_head_, j, p_.dim_qk);
    const T inner = slope * scale * std::abs(outer);
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
      add_term(g_.dq, to_q + d, tdx.value * k[d], tdx.size * k[d], trounded * inner * k[d]);
      add_term(g_.dq, to_q + d, dx.value * tk[d], dx.size * tk[d], rounded * inner * tk[d]);
      add_term(g_.dk, to_k + d, tdx.value * r.q[d], tdx.size * r.q[d], trounded * inner * r.q[d]);
      add_term(g_.dk, to_k + d, dx.value * r.tq[d], dx.size * r.tq[d], rounded * inner * r.tq[d]);
    }
  }
  void side(const HeadScores& scores, std::int64_t h, std::int64_t i, std::int64_t j, Sized<T> tds, T rounded) {
    const std::lock_guard lock(shared_);
    if (p_.bias) add_term(g_.dbias, index_in<4>(a_.bias, {batch_, h, i, j}), tds.value, tds.size, rounded);
    if (!p_.alibi) return;
    const T distance = static_cast<T>(scores.distance(i, j));
    add_term(g_.dalibi_slopes, index_in<2>(a_.alibi_slopes, {batch_, h}), -tds.value * distance, tds.size * distance,
             rounded * distance);
  }

  const SecondStatistics& rows_;
  Round round_;
  DenseGradients& g_;
  std::mutex& shared_;  // of the gradients of side tensors, which several heads add to
  std::vector<T> tk_{}, tv_{}, curve_{};
};

template <class T, class Round>
DenseGradients second(const Problem& p, const Tensors& a, const SecondStatistics& rows, Round round,
                      Executor& executor) {
  DenseGradients g = zero_gradients(p, a, std::is_same_v<T, double> && rounds(p));
  const Mods mods = mods_of(p, p.mod_buffers);
  const ScoreParams params = score_params(p, a, &mods);
  std::mutex shared;
  parallel(executor, p.batch * p.heads_kv, [&](std::int64_t t, int) {
    HeadSecond<T, Round>(p, a, rows, params, round, g, shared, t / p.heads_kv, t % p.heads_kv).run();
  });
  return g;
}

}  // namespace

DenseGradients oracle_second(const Problem& p, const Tensors& a, Executor& executor) {
  return second<double>(p, a, second_statistics(p, a, GivenResults{p, a}), Exact{}, executor);
}
DenseGradients base_second(const Problem& p, const Tensors& a, Executor& executor) {
  const SecondStatistics rows = second_statistics(p, a, GivenResults{p, a});
  return with_own_rounding(p, [&](auto round) { return second<float>(p, a, rows, round, executor); });
}
DenseGradients oracle_double_backward(const Problem& p, const Tensors& a, Executor& executor) {
  const OwnResults results{p, oracle(p, a, executor), oracle_tangents(p, a, executor)};
  return second<double>(p, a, second_statistics(p, a, results), Exact{}, executor);
}

}  // namespace onepass::reference
