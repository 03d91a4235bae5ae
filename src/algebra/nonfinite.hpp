// NaN and infinity: the policy of every kernel, beside the algebra. Header-free.
//
// A product with the weights multiplies every weight with every value. A hidden key's weight of 0 times a NaN spoils a
// row that does not see it. A visible weight that underflowed to 0 times an infinity becomes NaN. A row that sees a NaN
// or an infinity must be non-finite where the formula is, and no other row may change. There are two ways:
//
//   1. Values that are not finite enter the product as zeros. Flags bring them to the rows that see them
//      (src/cpu/flash/nonfinite-inl.h).
//
//   2. The kernel tests its outputs as it writes them (probe_finite) and computes those that are not finite once more.
//      There, values of hidden keys stay out of the sums. Visible weights and the factors that rescale older output are
//      never 0 (visible_weight).
#if !defined(ONEPASS_CORE_NONFINITE_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_NONFINITE_HPP
#include "algebra/online_softmax.hpp"  // per target: includes it, too

ONEPASS_BEGIN

// 2^-80: far below any rounding of O, whose largest weight is about 1, and 2^46 above what fp32 flushes to 0, so that
// an infinity lives through a product with 1 / l.
inline constexpr double kLeastWeight = 8.271806125530277e-25;

// A visible key's weight, or a factor that rescales output of visible keys. A NaN stays. Arith<V> of vectors has
// at_least.
template <class V>
ONEPASS_HD V visible_weight(V weight) {
  if constexpr (requires { Arith<V>::at_least(weight, kLeastWeight); }) {
    return Arith<V>::at_least(weight, kLeastWeight);
  } else {
    const V least = Arith<V>::of(kLeastWeight);
    return weight < least ? least : weight;
  }
}

// 0 while every x so far is finite, else NaN.
template <class V>
ONEPASS_HD V probe_finite(V probe, V x) {
  return probe + x * Arith<V>::of(0.0);
}
template <class T>
ONEPASS_HD bool is_finite(T x) {
  return x * T(0) == T(0);
}

// The weight changes only where it meets a value that is not finite: finite results do not depend on it.
template <class T>
ONEPASS_HD T visible_weight(T weight, T value) {
  return is_finite(value) ? weight : visible_weight(weight);
}

ONEPASS_END
#endif
