// Numbers that carry their derivative by the score: a score_mod run over them (eval.hpp) gives its value and its
// derivative from the one text. Forward-mode differentiation: Griewank and Walther, Evaluating Derivatives, chapter 3.
//
// Where a function has a corner, the derivative is that of the branch which gave the value: abs at 0 rises, min and max
// of equals take the first. A constant's derivative is 0 whatever it goes through, be it sqrt(0).
#if !defined(ONEPASS_CORE_EXPRESSION_DUAL_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_EXPRESSION_DUAL_HPP
#include <cstdint>

#include "algebra/portable.hpp"
#include "expression/eval.hpp"

ONEPASS_BEGIN

// True of numbers that are exactly 0; of dual ones with all of their derivatives.
ONEPASS_HD constexpr bool is_nothing(float x) { return x == 0; }
ONEPASS_HD constexpr bool is_nothing(double x) { return x == 0; }

// T: a float type, or a dual number, which then carries the second derivative.
template <class T>
struct Dual {
  T value = 0, derivative = 0;

  constexpr Dual() = default;
  template <class X>
    requires std::is_arithmetic_v<X>
  ONEPASS_HD constexpr explicit(false) Dual(X x) : value(static_cast<T>(x)) {}
  ONEPASS_HD constexpr Dual(T v, T d) : value(v), derivative(d) {}
  explicit operator std::int32_t() const { return static_cast<std::int32_t>(value); }

  // f(x) with the slope of f there.
  ONEPASS_HD Dual through(T f, T slope) const { return {f, is_nothing(derivative) ? T(0) : derivative * slope}; }

  friend ONEPASS_HD constexpr bool is_nothing(Dual a) { return is_nothing(a.value) && is_nothing(a.derivative); }
  friend ONEPASS_HD Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.derivative + b.derivative}; }
  friend ONEPASS_HD Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.derivative - b.derivative}; }
  friend ONEPASS_HD Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.through(a.value, b.value).derivative + b.through(b.value, a.value).derivative};
  }
  friend ONEPASS_HD Dual operator/(Dual a, Dual b) {
    const T q = a.value / b.value;
    return {q, a.through(q, 1 / b.value).derivative - b.through(q, q / b.value).derivative};
  }
  friend ONEPASS_HD constexpr bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend ONEPASS_HD constexpr bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend ONEPASS_HD constexpr bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend ONEPASS_HD constexpr bool operator==(Dual a, Dual b) { return a.value == b.value; }
  friend ONEPASS_HD constexpr bool operator!=(Dual a, Dual b) { return a.value != b.value; }
  friend ONEPASS_HD constexpr Dual operator-(Dual a) { return {-a.value, -a.derivative}; }
};

// Functions: those of T, as ExprRun<T, Functions> takes them.
template <class Functions>
struct DualFunctions {
  template <class T>
  static void apply(ExprCode code, const Dual<T>* in, Dual<T>* out, int n) {
    constexpr T ln2 = T(0.69314718055994530942);
    alignas(64) T x[kExprBlock] = {}, f[kExprBlock];  // whole vectors, in kernels
    for (int i = 0; i < n; ++i) x[i] = in[i].value;
    Functions::apply(code, x, f, n);
    const auto other = [&](ExprCode slopes, T sign) {  // a slope that is a function of its own
      alignas(64) T s[kExprBlock];
      Functions::apply(slopes, x, s, n);
      for (int i = 0; i < n; ++i) out[i] = in[i].through(f[i], sign * s[i]);
    };
    const auto each = [&](auto slope) {
      for (int i = 0; i < n; ++i) out[i] = in[i].through(f[i], slope(x[i], f[i]));
    };
    switch (code) {
      case ExprCode::exp: return each([](T, T y) { return y; });
      case ExprCode::exp2: return each([&](T, T y) { return y * ln2; });
      case ExprCode::log: return each([](T v, T) { return 1 / v; });
      case ExprCode::log2: return each([&](T v, T) { return 1 / (v * ln2); });
      case ExprCode::sqrt: return each([](T, T y) { return T(0.5) / y; });
      case ExprCode::tanh: return each([](T, T y) { return 1 - y * y; });
      case ExprCode::sin: return other(ExprCode::cos, 1);
      case ExprCode::cos: return other(ExprCode::sin, -1);
      default: return each([](T, T) { return T(0); });  // floor, ceil
    }
  }
};

ONEPASS_END
#endif
