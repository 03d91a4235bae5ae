// The online-softmax algebra: the only place in the library where it is written.
//
// A RowState (m, l), together with an output row O, represents a set of visited keys. Every verb preserves
//
//     l = sum_i 2^(s_i - m)        O = sum_i 2^(s_i - m) * v_i         (scores s_i in log2 units)
//
// m is a reference exponent: the running maximum, or one that lags behind. The state of no keys is (m = -inf, l = 0,
// O = 0): the identity of merge; its LSE is -inf and its output 0.
//
// V is a number or a vector of numbers (one row per lane); Arith<V> says how to compute with it. This text has no
// headers of its own, so CUDA kernels compile it too, and src/cpu includes it once per instruction set (Highway's
// convention, since a template must be parsed under the target it runs on). Never build it with -ffinite-math-only:
// -inf is a value here.
//
// Sources: Milakov & Gimelshein 2018 (online normaliser); Rabe & Staats 2021; Dao et al. 2022, Algorithm 1.
#if !defined(ONEPASS_CORE_ONLINE_SOFTMAX_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_ONLINE_SOFTMAX_HPP
#include "algebra/portable.hpp"

ONEPASS_BEGIN

inline constexpr double kLog2e = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

// exp2, log2, max, neg_inf, of(double), if_neg_inf(x, then, otherwise), if_zero(x, then, otherwise). For scores in a
// unit of their own also if_within(x, bound, then, otherwise): |x| <= bound; mul(a, b): rounded, whatever is added to
// it; mul_add(a, b, c): in one instruction.
template <class V>
struct Arith;

template <class V>
struct RowState {
  V m = Arith<V>::neg_inf();
  V l = Arith<V>::of(0.0);
};

// The effect of a step on old data (multiply l and O by alpha) and on new scores (subtract m_ref).
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

// Moves the reference to cover a tile whose maximum is tile_max.
template <class V>
ONEPASS_HD Rescale<V> advance(RowState<V>& s, V tile_max) {
  using A = Arith<V>;
  const V m_new = A::max(s.m, tile_max);
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

// The exponent of a score's weight, and the weight.
template <class V>
ONEPASS_HD V log2_weight(V score, const Rescale<V>& r) {
  return score - r.m_ref;
}
template <class V>
ONEPASS_HD V weight(V score, const Rescale<V>& r) {
  return Arith<V>::exp2(log2_weight(score, r));
}
// The same for a product that still lacks its factor to log2 units: one instruction, rounded once.
template <class V>
ONEPASS_HD V fused_log2_weight(V product, V factor, const Rescale<V>& r) {
  using A = Arith<V>;
  return A::mul_add(product, factor, A::of(0.0) - r.m_ref);
}
template <class V>
ONEPASS_HD V fused_weight(V product, V factor, const Rescale<V>& r) {
  return Arith<V>::exp2(fused_log2_weight(product, factor, r));
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

// A sink is a key without a value: it joins the denominator only. A row that has seen no key is the sink alone: O = 0,
// and its LSE is the sink.
template <class V>
ONEPASS_HD Merged<V> join_sink(const RowState<V>& s, V sink) {
  return merge(s, RowState<V>{sink, Arith<V>::of(1.0)});
}

// Arith<V> may know a faster inverse than a division.
template <class V>
ONEPASS_HD V inverse(V x) {
  if constexpr (requires { Arith<V>::inverse(x); })
    return Arith<V>::inverse(x);
  else
    return Arith<V>::of(1.0) / x;
}

// 1/l; 0 for an empty row, whose output is 0.
template <class V>
ONEPASS_HD V inverse_sum(const RowState<V>& s) {
  return Arith<V>::if_zero(s.l, Arith<V>::of(0.0), inverse(s.l));
}
// O / l, element by element: a row of one key, w v / w, is v but for one rounding, which w v (1/w) is not.
template <class V>
ONEPASS_HD V normalize(V o, const RowState<V>& s) {
  return Arith<V>::if_zero(s.l, Arith<V>::of(0.0), o / s.l);
}

// 1/l and the natural-log LSE (-inf for an empty row).
template <class V>
struct Final {
  V inv_l, lse;
};
template <class V>
ONEPASS_HD Final<V> finalize(const RowState<V>& s) {
  using A = Arith<V>;
  return {inverse_sum(s), A::if_zero(s.l, A::neg_inf(), (s.m + A::log2(s.l)) * A::of(kLn2))};
}

// ---- scores in a unit of their own
//
// Kernels leave scores in the unit they arise in: products that lack scale * log2 e, or natural ones that lack log2 e.
// `factor` > 0 takes them to log2 units. m has the scores' unit, so it is finite where they are; in log2 units a bias
// of 2.4e38 would be infinite.
//
// While |m * factor| <= kFusable, weights refer to that product as rounded, and the factor fuses into the subtraction:
// one instruction a score. The rounding moves all of a row's weights alike, by at most 2^-13 in log2 units. Beyond it
// would not stay small (at 5e8 it is up to 32, at 1e10 512: weights of infinity or 0), so there the difference is taken
// in the scores' own unit, which is exact near the maximum.
inline constexpr double kFusable = 4096.0;

// A score s weighs 2^((s + before) * factor + after); before = 0 while it may be fused.
template <class V>
struct Step {
  V alpha, before, after;
};

template <class V>
ONEPASS_HD Step<V> refer_to(V m, V factor) {
  using A = Arith<V>;
  const V m_ref = finite_ref(m), at = A::mul(m_ref, factor), zero = A::of(0.0);
  return {A::of(1.0), A::if_within(at, kFusable, zero, zero - m_ref), A::if_within(at, kFusable, zero - at, zero)};
}
// The factor that turns sums that refer to m into sums that refer to r.
template <class V>
ONEPASS_HD V moved(V m, V factor, const Step<V>& r) {
  return Arith<V>::exp2(Arith<V>::mul(m + r.before, factor) + r.after);
}

// The first tile: advance() from the empty state.
template <class V>
ONEPASS_HD Step<V> open(RowState<V>& s, V tile_max, V factor) {
  s = {tile_max, Arith<V>::of(0.0)};
  return refer_to(tile_max, factor);
}
template <class V>
ONEPASS_HD Step<V> move_to(RowState<V>& s, V m_new, V factor, Step<V> r) {
  r.alpha = moved(s.m, factor, r);
  s.m = m_new;
  s.l = s.l * r.alpha;
  return r;
}
template <class V>
ONEPASS_HD Step<V> advance(RowState<V>& s, V tile_max, V factor) {
  const V m_new = Arith<V>::max(s.m, tile_max);
  return move_to(s, m_new, factor, refer_to(m_new, factor));
}

// The reference is m itself and not the rounded product m * factor: the largest score weighs exactly 1, so l >= 1.
// Logarithms of weights and states that other arithmetic joins need this: to them the rounding is an error of up to
// 8.4e-5 (kLn2 * 2^-13). It takes one instruction more than a fused weight.
template <class V>
ONEPASS_HD Step<V> refer_exactly_to(V m) {
  using A = Arith<V>;
  return {A::of(1.0), A::of(0.0) - finite_ref(m), A::of(0.0)};
}
template <class V>
ONEPASS_HD Step<V> advance_exactly(RowState<V>& s, V tile_max, V factor) {
  const V m_new = Arith<V>::max(s.m, tile_max);
  return move_to(s, m_new, factor, refer_exactly_to(m_new));
}
// A lazy step, for fused_weight alone: the caller also takes advance() where |after| > kFusable, as it is for m = -inf.
template <class V>
ONEPASS_HD Step<V> keep(const RowState<V>& s, V factor) {
  using A = Arith<V>;
  return {A::of(1.0), A::of(0.0), A::of(0.0) - A::mul(s.m, factor)};
}

template <class V>
ONEPASS_HD V log2_weight(V score, V factor, const Step<V>& r) {
  return Arith<V>::mul_add(score + r.before, factor, r.after);
}
template <class V>
ONEPASS_HD V weight(V score, V factor, const Step<V>& r) {
  return Arith<V>::exp2(log2_weight(score, factor, r));
}
template <class V>
ONEPASS_HD V fused_log2_weight(V score, V factor, const Step<V>& r) {
  return Arith<V>::mul_add(score, factor, r.after);
}
template <class V>
ONEPASS_HD V fused_weight(V score, V factor, const Step<V>& r) {
  return Arith<V>::exp2(fused_log2_weight(score, factor, r));
}

template <class V>
ONEPASS_HD Merged<V> merge_by(const RowState<V>& a, const RowState<V>& b, V m, V factor, const Step<V>& r) {
  const V alpha_a = moved(a.m, factor, r), alpha_b = moved(b.m, factor, r);
  return {{m, a.l * alpha_a + b.l * alpha_b}, alpha_a, alpha_b};
}
template <class V>
ONEPASS_HD Merged<V> merge(const RowState<V>& a, const RowState<V>& b, V factor) {
  const V m = Arith<V>::max(a.m, b.m);
  return merge_by(a, b, m, factor, refer_to(m, factor));
}
template <class V>
ONEPASS_HD Merged<V> merge_exactly(const RowState<V>& a, const RowState<V>& b, V factor) {
  const V m = Arith<V>::max(a.m, b.m);
  return merge_by(a, b, m, factor, refer_exactly_to(m));
}

// The state with m in natural units: unit = factor / log2 e takes scores there.
template <class V>
ONEPASS_HD RowState<V> to_natural(const RowState<V>& s, V factor, V unit) {
  using A = Arith<V>;
  const V at = A::mul(s.m, factor);
  return {A::if_within(at, kFusable, at * A::of(kLn2), s.m * unit), s.l};
}
// The largest score of a row whose m is its running maximum; NaN where a weight is NaN.
template <class V>
ONEPASS_HD V largest_score(const RowState<V>& s) {
  return Arith<V>::if_zero(s.l - s.l, s.m, s.l);
}
template <class V>
ONEPASS_HD Merged<V> join_natural_sink(const RowState<V>& s, V sink) {
  return merge(s, RowState<V>{sink, Arith<V>::of(1.0)}, Arith<V>::of(kLog2e));
}
template <class V>
ONEPASS_HD Final<V> finalize_natural(const RowState<V>& s) {
  using A = Arith<V>;
  return {inverse_sum(s), A::if_zero(s.l, A::neg_inf(), s.m + A::log2(s.l) * A::of(kLn2))};
}

// ---- finished results

// A finished partial (normalised output, natural LSE) is a state again.
template <class V>
ONEPASS_HD RowState<V> from_lse(V lse) {
  using A = Arith<V>;
  return {A::if_neg_inf(lse, lse, lse * A::of(kLog2e)), A::if_neg_inf(lse, A::of(0.0), A::of(1.0))};
}

// The weight of a finished partial beside the largest LSE of all: e^(lse - most), 0 for an empty one. The difference is
// taken first: an LSE of 1e4 times log2 e is known to no better than 2^-11 in fp32.
template <class V>
ONEPASS_HD V part_weight(V lse, V most) {
  return Arith<V>::exp2((lse - finite_ref(most)) * Arith<V>::of(kLog2e));
}

// e^x, and the natural logarithm of a sum of weights.
template <class V>
ONEPASS_HD V natural_weight(V x) {
  return Arith<V>::exp2(x * Arith<V>::of(kLog2e));
}
template <class V>
ONEPASS_HD V natural_log(V l) {
  return Arith<V>::log2(l) * Arith<V>::of(kLn2);
}

// The backward pass's weight, from the final LSE in log2 units: no maximum is needed any more.
template <class V>
ONEPASS_HD V probability(V score, V lse2) {
  return Arith<V>::exp2(score - finite_ref(lse2));
}

ONEPASS_END
#endif
