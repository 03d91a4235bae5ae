// From products to scores over vectors: core/score.hpp for the lanes of any kernel. Included once per target, like the
// algebra, whose Arith<V> it takes; of V also abs, tanh, neg_mul_add, select, nonzero and between.
#if !defined(ONEPASS_CPU_SCORE_CHAIN_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CPU_SCORE_CHAIN_HPP
#include "core/portable.hpp"

ONEPASS_BEGIN

// How a lane lies in its vector - rows, or keys and rows - is the kernel's: it brings bias, slope and distance.
template <class V>
struct ScoreChain {
  V scale, per_cap, cap;
  bool capped, biased, alibi;

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

  // Scaled, capped, biased, with ALiBi: all that comes before score_mod. distance: from the key to the row's position,
  // of either sign. What is not asked for is not read.
  ONEPASS_HD V transform(V product, V bias, V slope, V distance) const {
    using A = Arith<V>;
    V s = product * scale;
    if (capped) s = cap * A::tanh(s * per_cap);
    if (biased) s = s + bias;
    if (alibi) s = A::neg_mul_add(slope, A::abs(distance), s);
    return s;
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
