// From products to scores over vectors: problem/attention/score.hpp for the lanes of any kernel. Included once per
// target, like the algebra, whose Arith<V> it takes; of V also abs, tanh, neg_mul_add, select, nonzero and between.
#if !defined(ONEPASS_CPU_SCORE_CHAIN_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CPU_SCORE_CHAIN_HPP
#include "algebra/portable.hpp"

ONEPASS_BEGIN

// How a lane lies in its vector - rows, or keys and rows - is the kernel's: it brings bias, slope and distance.
template <class V>
struct ScoreChain {
  V scale, per_cap, cap;
  bool has_cap, biased, alibi;

  // cap = 0: none.
  ONEPASS_HD static ScoreChain of(float scale, float cap, bool biased, bool alibi) {
    using A = Arith<V>;
    return {A::of(scale), A::of(cap > 0 ? 1.0f / cap : 0.0f), A::of(cap), cap > 0, biased, alibi};
  }
  // For products that are divided by the cap, or scaled, already.
  ONEPASS_HD static ScoreChain of_scaled(float cap, bool biased, bool alibi) {
    using A = Arith<V>;
    return {A::of(1.0), A::of(1.0), A::of(cap), cap > 0, biased, alibi};
  }

  // Scaled and capped; and the derivative of that by the scaled product, from its value (not of_scaled's).
  ONEPASS_HD V capped(V product) const {
    const V s = product * scale;
    return has_cap ? cap * Arith<V>::tanh(s * per_cap) : s;
  }
  ONEPASS_HD V derivative(V s) const {
    const V t = s * per_cap;
    return Arith<V>::neg_mul_add(t, t, Arith<V>::of(1.0));
  }
  // Biased, with ALiBi. distance: from the key to the row's position, of either sign. What is not asked for is not
  // read.
  ONEPASS_HD V moved(V s, V bias, V slope, V distance) const {
    if (biased) s = s + bias;
    if (alibi) s = Arith<V>::neg_mul_add(slope, Arith<V>::abs(distance), s);
    return s;
  }
  // All that comes before score_mod.
  ONEPASS_HD V transform(V product, V bias, V slope, V distance) const {
    return moved(capped(product), bias, slope, distance);
  }
};

// Masks come after score_mod. mask: a lane of 0 is hidden.
template <class V, class M>
ONEPASS_HD V hide_by_mask(V s, M mask) {
  return Arith<V>::select(Arith<V>::nonzero(mask), s, Arith<V>::neg_inf());
}
// Lanes see the keys [from, to).
template <class V, class I>
ONEPASS_HD V hide_by_band(V s, I key, I from, I to) {
  return Arith<V>::select(Arith<V>::between(key, from, to), s, Arith<V>::neg_inf());
}

ONEPASS_END
#endif
