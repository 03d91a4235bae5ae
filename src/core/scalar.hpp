// Arith for plain host numbers.
#pragma once
#include <cmath>
#include <limits>

#include "core/online_softmax.hpp"

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

}  // namespace onepass
