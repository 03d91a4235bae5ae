// The gradients of one K/V head by the textbook: P and dS of a row, and what they add to each tensor.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "expression/dual.hpp"
#include "reference/gradients.hpp"

namespace onepass::reference {

// Results of the forward by dense_lse_index: LSE, D = rowsum(dO * O) - dLSE + dH H, the sum of the sizes of D's terms,
// and dH, the gradient of the entropy H.
struct RowStatistics {
  std::vector<double> lse, delta, delta_terms, dentropy;
};

template <class T>
std::vector<T> numbers_of(const ConstTensor& t, std::int64_t offset, std::int64_t count) {
  std::vector<T> row(static_cast<std::size_t>(count));
  for (std::int64_t d = 0; d < count; ++d) row[d] = static_cast<T>(load_element(t.data, t.dtype, offset + d));
  return row;
}
// The same as operands of products.
template <class T>
std::vector<T> operands_of(const Problem& p, const ConstTensor& t, std::int64_t offset, std::int64_t count) {
  std::vector<T> row = numbers_of<T>(t, offset, count);
  for (T& x : row) x = operand(p, x);
  return row;
}
// True if products round P, dP and dS.
inline bool rounds(const Problem& p) { return p.dtype != DType::f32 || p.precision == Precision::tf32; }
struct Tf32Factors {
  float operator()(float x) const { return round_to_tf32(x); }
};
// f(rounding): as P, dP and dS are rounded in the problem's own precision.
template <class F>
auto with_own_rounding(const Problem& p, const F& f) {
  switch (p.dtype) {
    case DType::bf16: return f(Stored<bf16>{});
    case DType::f16: return f(Stored<f16>{});
    default: return p.precision == Precision::tf32 ? f(Tf32Factors{}) : f(Exact{});
  }
}
template <class T>
T dot(const std::vector<T>& a, const T* b) {
  T sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// f(sequence, query head, row, its dense_lse_index)
template <class F>
void for_each_row(const Problem& p, const Tensors& a, F&& f) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < seq.seq_q; ++i) f(seq, h, i, dense_lse_index(p, seq, h, i));
  }
}

// Adds a term to a gradient. stored: the size of what kernels round in it (rounds()).
template <class T>
void add_term(DenseGradient& g, std::int64_t at, T x, T size, T stored) {
  g.value[at] += static_cast<double>(x);
  g.terms[at] += std::abs(static_cast<double>(size));
  if (!g.stored_squares.empty()) g.stored_squares[at] += static_cast<double>(stored * stored);
}

// Index of an element in the row-major array of a bias's or of slopes' own shape.
template <std::size_t kRank>
std::int64_t index_in(const ConstTensor& t, const std::array<std::int64_t, kRank>& at) {
  std::int64_t index = 0;
  for (int n = 0; n < t.rank; ++n) {
    const std::int64_t i = at[kRank - static_cast<std::size_t>(t.rank - n)];
    index = index * t.shape[n] + (t.shape[n] == 1 ? 0 : i);
  }
  return index;
}

// The index of a token's first element in dq (of_keys: in dk or dv) of dimension `dim`.
inline std::int64_t dense_gradient_index(const Problem& p, const Sequence& s, bool of_keys, std::int64_t head,
                                         std::int64_t token, std::int64_t dim) {
  const std::int64_t heads = of_keys ? p.heads_kv : p.heads_q, seq = of_keys ? p.seq_k : p.seq_q;
  const std::int64_t begin = of_keys ? s.k_begin : s.q_begin;
  return dim * (p.varlen ? (begin + token) * heads + head : (s.batch * heads + head) * seq + token);
}

// The keys of one K/V head of one batch entry, and a row's scores with them and their derivatives.
template <class T>
class ScoredKeys {
 protected:
  ScoredKeys(const Problem& p, const Tensors& a, const ScoreParams& params, std::int64_t batch, std::int64_t kv_head)
      : p_(p), a_(a), params_(params), batch_(batch), kv_head_(kv_head) {}

  void load_keys(const ConstTensor& t, std::int64_t dim, std::vector<T>& into) const {
    const KeyValueView view(t, seq_);
    into.resize(static_cast<std::size_t>(seq_.seq_k * dim));
    for (std::int64_t j = 0; j < seq_.seq_k; ++j)
      for (std::int64_t d = 0; d < dim; ++d)
        into[j * dim + d] = operand(p_, static_cast<T>(view.element(kv_head_, j, d)));
  }

  // Scores of the visible keys [lo, ..) and their derivatives: `inner` by the product before bias, `outer` of
  // score_mod.
  void score(const HeadScores& scores, const std::vector<T>& q, std::int64_t h, std::int64_t i, std::int64_t lo) {
    const auto n = static_cast<std::int64_t>(s_.size());
    tile_.resize(s_.size());
    for (std::int64_t c = 0; c < n; ++c) {
      const Score<T> x = scores.transformed_score(dot(q, k_.data() + (lo + c) * p_.dim_qk), i, lo + c);
      tile_[c] = {x.value, T(1)};
      inner_[c] = x.derivative;
    }
    if (params_.mods && n > 0) modify(scores, h, i, lo);
    for (std::int64_t c = 0; c < n; ++c) {
      const bool seen = scores.visible_in_mask(i, lo + c) && scores.tile(i, lo + c) != TileStates::empty;
      s_[c] = seen ? tile_[c].value : Arith<T>::neg_inf();
      outer_[c] = tile_[c].derivative;
    }
  }
  void modify(const HeadScores& scores, std::int64_t h, std::int64_t i, std::int64_t lo) {
    const auto head = static_cast<std::int32_t>(h), row = static_cast<std::int32_t>(i);
    const ExprTile<Dual<T>> tile{
        tile_.data(), 1,     1,   static_cast<std::int64_t>(tile_.size()), static_cast<std::int32_t>(batch_),
        lo,           &head, &row};
    const auto run = [&](const Expression& e) {
      numbers_.resize(e.steps.size() * kExprBlock);
      integers_.resize(e.steps.size() * kExprBlock);
      return ExprRun<Dual<T>, DualFunctions<ScalarFunctions>>(e, a_.mod_buffers, {numbers_.data(), integers_.data()});
    };
    if (params_.mods->score.given()) run(params_.mods->score).change(tile);
    if (!params_.mods->mask.given()) return;
    const auto shown = tile_;
    run(params_.mods->mask).hide(tile, {Arith<T>::neg_inf(), T(0)});
    for (std::size_t c = 0; c < shown.size(); ++c)
      if (scores.tile(i, lo + static_cast<std::int64_t>(c)) == TileStates::full) tile_[c] = shown[c];
  }

  const Problem& p_;
  const Tensors& a_;
  const ScoreParams& params_;
  std::int64_t batch_, kv_head_;
  Sequence seq_ = sequence_of(p_, a_, batch_);
  std::vector<T> k_{}, v_{}, s_{}, inner_{}, outer_{};
  std::vector<Dual<T>> tile_{}, numbers_{};
  std::vector<std::int32_t> integers_{};
};

// One K/V head of one batch entry with all its query heads. T: arithmetic type; round: how P, dP and dS are stored.
template <class T, class Round>
class HeadGradients : ScoredKeys<T> {
  using Base = ScoredKeys<T>;
  using Base::a_, Base::batch_, Base::inner_, Base::k_, Base::kv_head_, Base::outer_, Base::p_, Base::params_, Base::s_,
      Base::seq_, Base::v_;

 public:
  HeadGradients(const Problem& p, const Tensors& a, const ConstTensor& d_out, const RowStatistics& rows,
                const ScoreParams& params, Round round, DenseGradients& g, std::mutex& shared, std::int64_t batch,
                std::int64_t kv_head)
      : Base(p, a, params, batch, kv_head), d_out_(d_out), rows_(rows), round_(round), g_(g), shared_(shared) {}

  void run() {
    this->load_keys(a_.k, p_.dim_qk, k_);
    this->load_keys(a_.v, p_.dim_v, v_);
    for (std::int64_t h = kv_head_ * p_.group(); h < (kv_head_ + 1) * p_.group(); ++h) {
      sink_ = sink_of<T>(p_, a_, h);
      for (std::int64_t i = 0; i < seq_.seq_q; ++i) row(h, i);
    }
  }

 private:
  void row(std::int64_t h, std::int64_t i) {
    const std::int64_t at_row = dense_lse_index(p_, seq_, h, i);
    const T lse = static_cast<T>(rows_.lse[at_row]), delta = static_cast<T>(rows_.delta[at_row]);
    const T delta_terms = static_cast<T>(rows_.delta_terms[at_row]), dentropy = static_cast<T>(rows_.dentropy[at_row]);
    if (lse == Arith<T>::neg_inf()) return;  // neither a key nor a sink
    if (p_.sinks) {
      const T weight = std::exp(sink_ - lse);
      const T log = weight == T(0) ? T(0) : sink_ - lse;
      const std::lock_guard lock(shared_);
      add_term(g_.dsinks, h, -weight * (delta + dentropy * log),
               weight * (delta_terms + std::abs(dentropy) * (std::abs(log) + 1)), T(0));
    }
    const HeadScores scores{params_, batch_, h, band_mask(p_, seq_.seq_q, seq_.seq_k)};
    const Range seen = scores.band.keys_of(i);
    if (seen.lo >= seen.hi) return;
    const auto n = static_cast<std::size_t>(seen.hi - seen.lo);
    s_.resize(n), inner_.resize(n), outer_.resize(n);
    const auto q = operands_of<T>(p_, a_.q, row_offset(a_.q, seq_.batch, h, seq_.q_begin + i), p_.dim_qk);
    const auto d_o = operands_of<T>(p_, d_out_, row_offset(d_out_, seq_.batch, h, seq_.q_begin + i), p_.dim_v);
    this->score(scores, q, h, i, seen.lo);

    const Dropout dropout = dropout_of(p_, a_);
    const T scale = static_cast<T>(p_.effective_scale());
    const std::int64_t to_q = dense_gradient_index(p_, seq_, false, h, i, p_.dim_qk);
    for (std::int64_t j = seen.lo; j < seen.hi; ++j) {
      const T s = s_[j - seen.lo];
      if (s == Arith<T>::neg_inf()) continue;  // what a hidden key holds never enters, be it NaN
      const T weight = std::exp(s - lse), stored = round_(weight);
      const T z = dropout.active()
                      ? static_cast<T>(dropout.factor(static_cast<unsigned>(batch_), static_cast<unsigned>(h),
                                                      static_cast<unsigned>(i), static_cast<unsigned>(j)))
                      : T(1);
      const T* v = v_.data() + j * p_.dim_v;
      const T of_row = delta + dentropy * (s - lse), of_row_terms = delta_terms + std::abs(dentropy * (s - lse));
      const T dp = round_(z * dot(d_o, v)), ds = round_(stored * (dp - of_row));
      const std::int64_t to_v = dense_gradient_index(p_, seq_, true, kv_head_, j, p_.dim_v);
      T dp_terms = 0;
      for (std::int64_t d = 0; d < p_.dim_v; ++d) {
        add_term(g_.dv, to_v + d, round_(stored * z) * d_o[d], stored * z * d_o[d], stored * z * d_o[d]);
        dp_terms += std::abs(z * d_o[d] * v[d]);
      }
      const T size = stored * (dp_terms + of_row_terms + std::abs(dentropy));
      const T rounded = stored * (std::abs(dp) + 2 * std::abs(dp - of_row)) * outer_[j - seen.lo];  // dP, P and dS
      const T dt = ds * outer_[j - seen.lo], dt_size = size * std::abs(outer_[j - seen.lo]);
      if (p_.bias || p_.alibi) side(scores, h, i, j, dt, dt_size, rounded);
      const T inner = inner_[j - seen.lo] * scale, dx = dt * inner, dx_size = dt_size * std::abs(inner);
      const T* k = k_.data() + j * p_.dim_qk;
      const std::int64_t to_k = dense_gradient_index(p_, seq_, true, kv_head_, j, p_.dim_qk);
      for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
        add_term(g_.dq, to_q + d, dx * k[d], dx_size * k[d], rounded * inner * k[d]);
        add_term(g_.dk, to_k + d, dx * q[d], dx_size * q[d], rounded * inner * q[d]);
      }
    }
  }
  void side(const HeadScores& scores, std::int64_t h, std::int64_t i, std::int64_t j, T dt, T size, T rounded) {
    const std::lock_guard lock(shared_);
    if (p_.bias) add_term(g_.dbias, index_in<4>(a_.bias, {batch_, h, i, j}), dt, size, rounded);
    if (!p_.alibi) return;
    const T distance = static_cast<T>(scores.distance(i, j));
    add_term(g_.dalibi_slopes, index_in<2>(a_.alibi_slopes, {batch_, h}), -dt * distance, size * distance,
             rounded * distance);
  }

  const ConstTensor& d_out_;
  const RowStatistics& rows_;
  Round round_;
  DenseGradients& g_;
  std::mutex& shared_;  // of the gradients of side tensors, which several heads add to
  T sink_ = 0;
};

}  // namespace onepass::reference
