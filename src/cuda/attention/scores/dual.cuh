// Dual numbers: a user's score_mod compiled on them gives its score and the derivative by `score` from one text
// (attention/mods.cpp). Numbers that do not depend on the score stay what they are.
#pragma once
#include "cuda/attention/scores/mods.cuh"

namespace onepass::user {

// slope * derivative, and 0 for what does not depend on the score, though the slope may be infinite there.
DEV float chained(float slope, float derivative) { return derivative == 0.0f ? 0.0f : slope * derivative; }

struct Dual {
  float value, derivative;
  Dual() = default;
  DEV Dual(float x, float by_score = 0.0f) : value(x), derivative(by_score) {}
  DEV Dual(i32 x) : Dual(static_cast<float>(x)) {}
  DEV explicit operator i32() const { return static_cast<i32>(value); }
  DEV explicit operator bool() const { return value != 0.0f; }

  friend DEV Dual operator+(Dual x) { return x; }
  friend DEV Dual operator-(Dual x) { return {-x.value, -x.derivative}; }

  friend DEV Dual operator+(Dual x, Dual y) { return {x.value + y.value, x.derivative + y.derivative}; }
  friend DEV Dual operator+(Dual x, float y) { return {x.value + y, x.derivative}; }
  friend DEV Dual operator+(float x, Dual y) { return {x + y.value, y.derivative}; }

  friend DEV Dual operator-(Dual x, Dual y) { return {x.value - y.value, x.derivative - y.derivative}; }
  friend DEV Dual operator-(Dual x, float y) { return {x.value - y, x.derivative}; }
  friend DEV Dual operator-(float x, Dual y) { return {x - y.value, -y.derivative}; }

  friend DEV Dual operator*(Dual x, Dual y) {
    return {x.value * y.value, chained(y.value, x.derivative) + chained(x.value, y.derivative)};
  }
  friend DEV Dual operator*(Dual x, float y) { return {x.value * y, chained(y, x.derivative)}; }
  friend DEV Dual operator*(float x, Dual y) { return y * x; }

  friend DEV Dual operator/(Dual x, Dual y) {
    const float q = x.value / y.value;
    return {q, (x.derivative - chained(q, y.derivative)) / y.value};
  }
  friend DEV Dual operator/(Dual x, float y) { return {x.value / y, x.derivative / y}; }
  friend DEV Dual operator/(float x, Dual y) { return Dual(x) / y; }

  friend DEV bool operator<(Dual x, Dual y) { return x.value < y.value; }
  friend DEV bool operator<=(Dual x, Dual y) { return x.value <= y.value; }
  friend DEV bool operator>(Dual x, Dual y) { return x.value > y.value; }
  friend DEV bool operator>=(Dual x, Dual y) { return x.value >= y.value; }
  friend DEV bool operator==(Dual x, Dual y) { return x.value == y.value; }
  friend DEV bool operator!=(Dual x, Dual y) { return x.value != y.value; }
};

using ::fminf, ::fmaxf, ::fabsf, ::expf, ::exp2f, ::logf, ::log2f, ::sqrtf, ::sinf, ::cosf, ::floorf,
    ::ceilf;  // of floats, still

// Returns the first of two equal numbers, and the number of a NaN and a number.
DEV Dual fmin(Dual x, Dual y) { return {fminf(x.value, y.value), y.value < x.value ? y.derivative : x.derivative}; }
DEV Dual fmax(Dual x, Dual y) { return {fmaxf(x.value, y.value), x.value < y.value ? y.derivative : x.derivative}; }
DEV Dual fminf(Dual x, Dual y) { return fmin(x, y); }
DEV Dual fmaxf(Dual x, Dual y) { return fmax(x, y); }
DEV Dual min(Dual x, Dual y) { return fmin(x, y); }
DEV Dual max(Dual x, Dual y) { return fmax(x, y); }
DEV Dual abs(Dual x) { return {::fabsf(x.value), x.value < 0.0f ? -x.derivative : x.derivative}; }
DEV Dual exp(Dual x) {
  const float y = ::expf(x.value);
  return {y, chained(y, x.derivative)};
}
DEV Dual exp2(Dual x) {
  const float y = ::exp2f(x.value);
  return {y, chained(static_cast<float>(kLn2) * y, x.derivative)};
}
DEV Dual log(Dual x) { return {::logf(x.value), chained(1.0f / x.value, x.derivative)}; }
DEV Dual log2(Dual x) { return {::log2f(x.value), chained(static_cast<float>(kLog2e) / x.value, x.derivative)}; }
DEV Dual sqrt(Dual x) {
  const float y = ::sqrtf(x.value);
  return {y, chained(0.5f / y, x.derivative)};
}
DEV Dual tanh(Dual x) {
  const float y = tanh_of(x.value);
  return {y, chained(1.0f - y * y, x.derivative)};
}
DEV Dual sin(Dual x) { return {::sinf(x.value), chained(::cosf(x.value), x.derivative)}; }
DEV Dual cos(Dual x) { return {::cosf(x.value), chained(-::sinf(x.value), x.derivative)}; }
DEV Dual floor(Dual x) { return ::floorf(x.value); }
DEV Dual ceil(Dual x) { return ::ceilf(x.value); }
// As C names them.
DEV Dual fabs(Dual x) { return abs(x); }
DEV Dual fabsf(Dual x) { return abs(x); }
DEV Dual expf(Dual x) { return exp(x); }
DEV Dual exp2f(Dual x) { return exp2(x); }
DEV Dual logf(Dual x) { return log(x); }
DEV Dual log2f(Dual x) { return log2(x); }
DEV Dual sqrtf(Dual x) { return sqrt(x); }
DEV Dual tanhf(Dual x) { return tanh(x); }
DEV Dual sinf(Dual x) { return sin(x); }
DEV Dual cosf(Dual x) { return cos(x); }
DEV Dual floorf(Dual x) { return floor(x); }
DEV Dual ceilf(Dual x) { return ceil(x); }

// Where the user gives none, and in a forward pass. Never called.
#if !defined(ONEPASS_SCORE_DERIVATIVE)
DEV Dual score_mod(Dual score, i32, i32, i32, i32, const ModBufferView*) { return score; }
#endif

}  // namespace onepass::user
