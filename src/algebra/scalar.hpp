// Arith for plain host numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "algebra/online_softmax.hpp"

namespace onepass {

template <class T>
struct ScalarArith {
  static T of(double x) { return static_cast<T>(x); }
  static T neg_inf() { return -std::numeric_limits<T>::infinity(); }
  static T exp2(T x) { return std::exp2(x); }
  static T log2(T x) { return std::log2(x); }
  static T max(T a, T b) { return a > b || a != a ? a : b; }  // a NaN wins, as it does in the sum
  static T mul(T a, T b) { return a * b; }
  static T mul_add(T a, T b, T c) { return std::fma(a, b, c); }
  static T if_within(T x, double bound, T then, T otherwise) { return std::abs(x) <= T(bound) ? then : otherwise; }
  static T if_neg_inf(T x, T then, T otherwise) { return x == neg_inf() ? then : otherwise; }
  static T if_zero(T x, T then, T otherwise) { return x == T(0) ? then : otherwise; }
};

template <>
struct Arith<float> : ScalarArith<float> {};
template <>
struct Arith<double> : ScalarArith<double> {};

// ---- backward passes: weights come from the LSE of the forward

// A row that saw no key; it has no gradient either.
inline bool saw_nothing(float lse) { return lse == Arith<float>::neg_inf(); }

// Scores whose unit is `unit` natural ones weigh 2^((s + before) * unit * log2 e + after). This is exact where a score
// is near the LSE: `before` is the LSE in the scores' unit, and `after` is the part that `before` rounds away. (LSE *
// log2 e alone, fused into one instruction, is off by 1e-5 at an LSE of 300.) A row that saw nothing has after = -inf,
// which is not a weight; in every other row `after` is finite.
inline Step<float> refer_to_lse(float lse, double unit) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (saw_nothing(lse)) return {1.0f, 0.0f, lse};
  const double natural = static_cast<double>(lse), at = -natural / unit;
  if (!std::isfinite(lse)) return {1.0f, static_cast<float>(at), 0.0f};
  // A reference beyond fp32: the unit is below 1, and no finite score comes near the LSE.
  const float before = std::abs(at) > kMost ? 0.0f : static_cast<float>(at);
  const double after = (-natural - static_cast<double>(before) * unit) * kLog2e;
  return {1.0f, before, static_cast<float>(std::clamp(after, -kMost, kMost))};
}

// The weight of a sink in a row.
inline double sink_weight(float sink, float lse) {
  return saw_nothing(lse) ? 0.0 : std::exp(static_cast<double>(sink) - static_cast<double>(lse));
}

}  // namespace onepass
