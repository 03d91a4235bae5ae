#include "reference/derivatives/head_gradients.hpp"

namespace onepass::reference {
namespace {

// One K/V head of one batch entry with all its query heads. T: arithmetic type; round: how P and P dS are stored.
template <class T, class Round>
class HeadTangents : ScoredKeys<T> {
  using Base = ScoredKeys<T>;
  using Base::a_, Base::batch_, Base::inner_, Base::k_, Base::kv_head_, Base::outer_, Base::p_, Base::params_, Base::s_,
      Base::seq_, Base::v_;

 public:
  HeadTangents(const Problem& p, const Tensors& a, const ScoreParams& params, Round round, DenseTangents& results,
               std::int64_t batch, std::int64_t kv_head)
      : Base(p, a, params, batch, kv_head), round_(round), results_(results) {}

  void run() {
    this->load_keys(a_.k, p_.dim_qk, k_);
    this->load_keys(a_.v, p_.dim_v, v_);
    this->load_keys(a_.tk, p_.dim_qk, tk_);
    this->load_keys(a_.tv, p_.dim_v, tv_);
    for (std::int64_t h = kv_head_ * p_.group(); h < (kv_head_ + 1) * p_.group(); ++h)
      for (std::int64_t i = 0; i < seq_.seq_q; ++i) row(h, i);
  }

 private:
  static T sizes(const std::vector<T>& a, const T* b) {
    T sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] * b[i]);
    return sum;
  }
  T bias_tangent(std::int64_t h, std::int64_t i, std::int64_t j) const {
    const Dims s = broadcast_strides(a_.tbias);
    return static_cast<T>(load_element(a_.tbias.data, a_.tbias.dtype, batch_ * s[0] + h * s[1] + i * s[2] + j * s[3]));
  }

  void row(std::int64_t h, std::int64_t i) {
    const HeadScores scores{params_, batch_, h, band_mask(p_, seq_.seq_q, seq_.seq_k)};
    const Range seen = scores.band.keys_of(i);
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, seen.hi - seen.lo));
    s_.resize(n), inner_.resize(n), outer_.resize(n);
    const std::int64_t token = seq_.q_begin + i;
    const auto q = operands_of<T>(p_, a_.q, row_offset(a_.q, seq_.batch, h, token), p_.dim_qk),
               tq = operands_of<T>(p_, a_.tq, row_offset(a_.tq, seq_.batch, h, token), p_.dim_qk);
    this->score(scores, q, h, i, seen.lo);
    const Normalizer<T> all = weights_of<T>(s_, sink_of<T>(p_, a_, h), weights_);
    const Dropout dropout = dropout_of(p_, a_);
    const T scale = static_cast<T>(p_.effective_scale());
    std::vector<T> out(p_.dim_v), tout(p_.dim_v), terms(p_.dim_v), out_terms(p_.dim_v), squares(p_.dim_v),
        out_squares(p_.dim_v);
    T mu = 0, mu_terms = 0;
    for (std::size_t c = 0; c < n; ++c) {
      if (s_[c] == Arith<T>::neg_inf()) continue;  // what a hidden key holds never enters, be it NaN
      const std::int64_t j = seen.lo + static_cast<std::int64_t>(c);
      const T *k = k_.data() + j * p_.dim_qk, *tk = tk_.data() + j * p_.dim_qk;
      T ds = inner_[c] * scale * (dot(tq, k) + dot(q, tk));
      T size = std::abs(inner_[c] * scale) * (sizes(tq, k) + sizes(q, tk));
      if (p_.tbias) {
        const T t = bias_tangent(h, i, j);
        ds += t, size += std::abs(t);
      }
      ds *= outer_[c], size *= std::abs(outer_[c]);
      const T weight = weights_[c] / all.l;
      mu += weight * ds, mu_terms += weight * size;
      const T z = dropout.active()
                      ? static_cast<T>(dropout.factor(static_cast<unsigned>(batch_), static_cast<unsigned>(h),
                                                      static_cast<unsigned>(i), static_cast<unsigned>(j)))
                      : T(1);
      const T stored = round_(weight * z), moved = round_(weight * ds * z);
      const T *v = v_.data() + j * p_.dim_v, *tv = tv_.data() + j * p_.dim_v;
      for (std::int64_t d = 0; d < p_.dim_v; ++d) {
        out[d] += stored * v[d];
        tout[d] += moved * v[d] + stored * tv[d];
        out_terms[d] += std::abs(stored * v[d]);
        terms[d] += std::abs(weight * z * size * v[d]) + std::abs(stored * tv[d]);
        squares[d] += moved * v[d] * moved * v[d] + stored * tv[d] * stored * tv[d];
        out_squares[d] += stored * v[d] * stored * v[d];
      }
    }
    if (p_.tsinks) {
      const T t = static_cast<T>(static_cast<const float*>(a_.tsinks.data)[h * a_.tsinks.stride[0]]);
      const T weight = all.sink / all.l;
      mu += weight * t, mu_terms += std::abs(weight * t);
    }
    const std::int64_t at = dense_out_index(p_, seq_, h, i), at_row = dense_lse_index(p_, seq_, h, i);
    for (std::int64_t d = 0; d < p_.dim_v; ++d) {
      results_.tout.value[at + d] = static_cast<double>(tout[d] - mu * out[d]);
      results_.tout.terms[at + d] = static_cast<double>(terms[d] + mu_terms * out_terms[d]);
      if (!results_.tout.stored_squares.empty())
        results_.tout.stored_squares[at + d] = static_cast<double>(squares[d] + mu * mu * out_squares[d]);
    }
    results_.tlse.value[at_row] = static_cast<double>(mu);
    results_.tlse.terms[at_row] = static_cast<double>(mu_terms);
  }

  Round round_;
  DenseTangents& results_;
  std::vector<T> tk_{}, tv_{}, weights_{};
};

template <class T, class Round>
DenseTangents tangents(const Problem& p, const Tensors& a, Round round, Executor& executor) {
  const std::int64_t rows = (p.varlen ? p.total_q : p.batch * p.seq_q) * p.heads_q;
  DenseTangents results;
  results.tout.resize(rows * p.dim_v, std::is_same_v<T, double> && rounds(p));
  results.tlse.resize(rows, false);
  const Mods mods = mods_of(p, p.mod_buffers);
  const ScoreParams params = score_params(p, a, &mods);
  parallel(executor, p.batch * p.heads_kv, [&](std::int64_t t, int) {
    HeadTangents<T, Round>(p, a, params, round, results, t / p.heads_kv, t % p.heads_kv).run();
  });
  return results;
}

}  // namespace

DenseTangents oracle_tangents(const Problem& p, const Tensors& a, Executor& executor) {
  return tangents<double>(p, a, Exact{}, executor);
}
DenseTangents base_tangents(const Problem& p, const Tensors& a, Executor& executor) {
  return with_own_rounding(p, [&](auto round) { return tangents<float>(p, a, round, executor); });
}

}  // namespace onepass::reference
