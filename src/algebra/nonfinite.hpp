// What happens to NaN and infinity: the policy of every kernel, beside the algebra. Header-free.
//
// Products multiply every weight with every value, so a masked weight of 0 times a NaN spoils a row that does not see
// it, and a visible weight that underflowed to 0 times an infinity becomes a NaN. Both show: the output is not finite.
//   1. A kernel looks at its outputs (probe_finite) as it writes them; ordinary input pays that one look.
//   2. What is not finite is computed once more by the kernel's fallback: values of masked keys stay out of the sums,
//      be they NaN, and a visible weight is never 0, nor is what rescales older output (visible_weight).
// A row that sees a NaN or an infinity is then what the formula makes of it, and no other row is touched.
#if !defined(ONEPASS_CORE_NONFINITE_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_NONFINITE_HPP
#include "algebra/online_softmax.hpp"  // per target: includes it, too

ONEPASS_BEGIN

// 2^-80: far below any rounding of O, whose largest weight is about 1, and 2^46 above what fp32 flushes to 0, so that
// an infinity lives through a product with 1 / l.
inline constexpr double kLeastWeight = 8.271806125530277e-25;

// A visible key's weight, or a rescaling of what visible keys have left. A NaN stays. Arith<V> of vectors has at_least.
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

// Number by number the weight changes only where it meets what is not finite: finite results do not depend on it.
template <class T>
ONEPASS_HD T visible_weight(T weight, T value) {
  return is_finite(value) ? weight : visible_weight(weight);
}

ONEPASS_END
#endif
