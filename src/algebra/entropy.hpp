// The entropy of a row's weights beside its state (online_softmax.hpp): H = -sum_j P_j ln P_j, in nats. A sink is a
// key.
//
//   l = sum_j 2^e_j        t = sum_j 2^e_j e_j        H = ln l - ln2 t / l
//
// e_j is the exponent of a weight, at most 0 up to rounding. Both terms of H are then at least 0, so that nothing
// cancels, however large the scores are. H = LSE - sum_j P_j s_j, the same number, loses what scores have in common.
//
// Parts of a row over disjoint keys have entropies H_i and shares p_i of the sum of weights: H = sum_i p_i (H_i - ln
// p_i).
//
// Header-free, and included once per instruction set, as online_softmax.hpp.
#if !defined(ONEPASS_ALGEBRA_ENTROPY_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_ALGEBRA_ENTROPY_HPP
#if !defined(ONEPASS_PER_TARGET)
#include "algebra/online_softmax.hpp"
#endif

ONEPASS_BEGIN

// 2^-160 is 0 in fp32. A hidden key's exponent is -infinity, and 0 times that would be NaN.
inline constexpr double kLeastExponent = -160;

// The exponent of a weight, as a factor. A NaN may be lost here; the weight has it.
template <class V>
ONEPASS_HD V exponent(V log2_of_weight) {
  return Arith<V>::max(log2_of_weight, Arith<V>::of(kLeastExponent));
}
template <class V>
ONEPASS_HD V exponent(V score, V factor, const Step<V>& r) {
  return exponent(log2_weight(score, factor, r));
}

// t after a step that took the reference from m_before to where r refers to, and l, already rescaled, along. The
// exponent of alpha is rounded as moved() rounds it.
template <class V>
ONEPASS_HD V moved_terms(V t, V l, V m_before, V factor, const Step<V>& r) {
  using A = Arith<V>;
  const V move = exponent(A::mul(m_before + r.before, factor) + r.after);
  return A::mul_add(l, move, t * r.alpha);
}
template <class V>
ONEPASS_HD V moved_terms(V t, V l, V m_before, const Rescale<V>& r) {
  return Arith<V>::mul_add(l, exponent(m_before - r.m_ref), t * r.alpha);
}

// 0 of no keys.
template <class V>
ONEPASS_HD V entropy(V l, V t) {
  using A = Arith<V>;
  return A::if_zero(l, A::of(0.0), (A::log2(l) - t / l) * A::of(kLn2));
}

// The addend of a part with this share of the weights in the entropy of the whole.
template <class V>
ONEPASS_HD V entropy_of_part(V of_part, V share) {
  using A = Arith<V>;
  return A::if_zero(share, A::of(0.0), share * (of_part - A::log2(share) * A::of(kLn2)));
}
// The entropy of two parts that are joined.
template <class V>
ONEPASS_HD V joined_entropy(V a, V l_a, V b, V l_b, const Merged<V>& joined) {
  const V l = joined.state.l;
  return Arith<V>::if_zero(l, Arith<V>::of(0.0),
                           entropy_of_part(a, l_a * joined.alpha_a / l) + entropy_of_part(b, l_b * joined.alpha_b / l));
}

// ln P, and 0 for a weight of 0, whose P ln P is 0.
template <class V>
ONEPASS_HD V log_weight(V p) {
  using A = Arith<V>;
  return A::if_zero(p, A::of(0.0), A::log2(p) * A::of(kLn2));
}
// log2 P for a product with P, which is 0 where P is less than a normal number of fp32.
template <class V>
ONEPASS_HD V log2_for_product(V p) {
  using A = Arith<V>;
  return A::log2(A::max(p, A::of(0x1p-126)));
}

ONEPASS_END
#endif
