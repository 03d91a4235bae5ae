// The online-softmax algebra: the only place in the library where it is written.
//
// A RowState (m, l), together with an output row O, represents a set of visited keys. Every verb preserves
//
//     l = sum_i 2^(s_i - m)        O = sum_i 2^(s_i - m) * v_i         (scores s_i in log2 units)
//
// m is a reference exponent: the running maximum, or an integer above it, or one that lags behind. The state of no
// keys is (m = -inf, l = 0, O = 0): the identity of merge; its LSE is -inf and its output 0.
//
// V is a number or a vector of numbers (one row per lane); Arith<V> says how to compute with it. This text has no
// headers of its own, so CUDA kernels compile it too, and src/cpu includes it once per instruction set (Highway's
// convention, since a template must be parsed under the target it runs on). Never build it with -ffinite-math-only:
// -inf is a value here.
//
// Sources: Milakov & Gimelshein 2018 (online normaliser); Rabe & Staats 2021; Dao et al. 2022, Algorithm 1.
#if !defined(ONEPASS_CORE_ONLINE_SOFTMAX_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_ONLINE_SOFTMAX_HPP
#include "core/portable.hpp"

ONEPASS_BEGIN

inline constexpr double kLog2e = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

// exp2, log2, max, round_up, neg_inf, of(double), if_neg_inf(x, then, otherwise), if_zero(x, then, otherwise);
// mul_sub(a, b, c) = a * b - c for weight(product, factor, r) alone
template <class V>
struct Arith;

template <class V>
struct RowState {
  V m = Arith<V>::neg_inf();
  V l = Arith<V>::of(0.0);
};

// What a step does to old data (multiply l and O by alpha) and to new scores (subtract m_ref).
template <class V>
struct Rescale {
  V alpha, m_ref;
};

// 2^(-inf) = 0 is what makes the first tile and an all-masked tile fall out of the general case. This line is the
// library's only guard against (-inf) - (-inf).
template <class V>
ONEPASS_HD V finite_ref(V m) {
  return Arith<V>::if_neg_inf(m, Arith<V>::of(0.0), m);
}

// running: m is the maximum so far. integer: the next integer above it, so every alpha is an exact power of two and
// rescaling and merging round nothing (weights stay <= 1).
enum class Reference { running, integer };

// Moves the reference to cover a tile whose maximum is tile_max.
template <Reference kind = Reference::running, class V>
ONEPASS_HD Rescale<V> advance(RowState<V>& s, V tile_max) {
  using A = Arith<V>;
  const V top = kind == Reference::integer ? A::round_up(tile_max) : tile_max;
  const V m_new = A::max(s.m, top);
  const V m_ref = finite_ref(m_new);
  const V alpha = A::exp2(s.m - m_ref);
  s.m = m_new;
  s.l = s.l * alpha;
  return {alpha, m_ref};
}

// Leaves the reference where it is (a lazy step): weights may exceed 1; the caller checks that their sum stays in range
// and takes advance() from the untouched scores if it does not.
template <class V>
ONEPASS_HD Rescale<V> keep(const RowState<V>& s) {
  return {Arith<V>::of(1.0), s.m};
}

template <class V>
ONEPASS_HD V weight(V score, const Rescale<V>& r) {
  return Arith<V>::exp2(score - r.m_ref);
}

// The same for a product that still lacks its factor (scale * log2 e): fused, so that it is rounded once.
template <class V>
ONEPASS_HD V weight(V product, V factor, const Rescale<V>& r) {
  return Arith<V>::exp2(Arith<V>::mul_sub(product, factor, r.m_ref));
}

template <class V>
ONEPASS_HD void absorb(RowState<V>& s, V tile_sum) {
  s.l = s.l + tile_sum;
}

// a joined with b: O = alpha_a * O_a + alpha_b * O_b. Associative and commutative up to rounding.
template <class V>
struct Merged {
  RowState<V> state;
  V alpha_a, alpha_b;
};
template <class V>
ONEPASS_HD Merged<V> merge(const RowState<V>& a, const RowState<V>& b) {
  using A = Arith<V>;
  const V m = A::max(a.m, b.m);
  const V m_ref = finite_ref(m);
  const V alpha_a = A::exp2(a.m - m_ref), alpha_b = A::exp2(b.m - m_ref);
  return {{m, a.l * alpha_a + b.l * alpha_b}, alpha_a, alpha_b};
}

// A sink is a key without a value: it joins the denominator only. A row that has seen no key stays empty.
template <class V>
ONEPASS_HD Merged<V> join_sink(const RowState<V>& s, V sink) {
  using A = Arith<V>;
  const Merged<V> joined = merge(s, RowState<V>{sink, A::of(1.0)});
  return {{A::if_zero(s.l, s.m, joined.state.m), A::if_zero(s.l, s.l, joined.state.l)},
          A::if_zero(s.l, A::of(1.0), joined.alpha_a),
          joined.alpha_b};
}

// Arith<V> may know a faster inverse than a division.
template <class V>
ONEPASS_HD V inverse(V x) {
  if constexpr (requires { Arith<V>::inverse(x); })
    return Arith<V>::inverse(x);
  else
    return Arith<V>::of(1.0) / x;
}

// 1/l (0 for an empty row: its output is 0) and the natural-log LSE (-inf for an empty row).
template <class V>
struct Final {
  V inv_l, lse;
};
template <class V>
ONEPASS_HD Final<V> finalize(const RowState<V>& s) {
  using A = Arith<V>;
  return {A::if_zero(s.l, A::of(0.0), inverse(s.l)),
          A::if_zero(s.l, A::neg_inf(), (s.m + A::log2(s.l)) * A::of(kLn2))};
}

// A finished partial (normalised output, natural LSE) is a state again.
template <class V>
ONEPASS_HD RowState<V> from_lse(V lse) {
  using A = Arith<V>;
  return {A::if_neg_inf(lse, lse, lse * A::of(kLog2e)), A::if_neg_inf(lse, A::of(0.0), A::of(1.0))};
}

// The backward pass's weight, from the final LSE in log2 units: no maximum is needed any more.
template <class V>
ONEPASS_HD V probability(V score, V lse2) {
  return Arith<V>::exp2(score - finite_ref(lse2));
}

ONEPASS_END
#endif
