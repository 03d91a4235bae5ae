// Numbers with their first two derivatives by `score`: a user's score_mod compiled on them gives its score, slope and
// curve from one text (attention/mods.cpp). Where the first derivative is 0, a function's infinite slope counts for
// nothing, as with dual numbers (dual.cuh).
#pragma once
#include "cuda/attention/scores/dual.cuh"

namespace onepass::user {

struct Curve {
  float value, slope, curve;
  Curve() = default;
  DEV Curve(float x, float by_score = 0.0f, float twice = 0.0f) : value(x), slope(by_score), curve(twice) {}
  DEV Curve(i32 x) : Curve(static_cast<float>(x)) {}
  DEV explicit operator i32() const { return static_cast<i32>(value); }
  DEV explicit operator bool() const { return value != 0.0f; }

  friend DEV Curve operator+(Curve x) { return x; }
  friend DEV Curve operator-(Curve x) { return {-x.value, -x.slope, -x.curve}; }

  friend DEV Curve operator+(Curve x, Curve y) { return {x.value + y.value, x.slope + y.slope, x.curve + y.curve}; }
  friend DEV Curve operator+(Curve x, float y) { return {x.value + y, x.slope, x.curve}; }
  friend DEV Curve operator+(float x, Curve y) { return y + x; }

  friend DEV Curve operator-(Curve x, Curve y) { return x + -y; }
  friend DEV Curve operator-(Curve x, float y) { return {x.value - y, x.slope, x.curve}; }
  friend DEV Curve operator-(float x, Curve y) { return -y + x; }

  friend DEV Curve operator*(Curve x, Curve y) {
    return {x.value * y.value, chained(y.value, x.slope) + chained(x.value, y.slope),
            chained(y.value, x.curve) + chained(x.value, y.curve) + 2.0f * chained(y.slope, x.slope)};
  }
  friend DEV Curve operator*(Curve x, float y) { return {x.value * y, chained(y, x.slope), chained(y, x.curve)}; }
  friend DEV Curve operator*(float x, Curve y) { return y * x; }

  friend DEV Curve operator/(Curve x, Curve y) {
    const float q = x.value / y.value, slope = (x.slope - chained(q, y.slope)) / y.value;
    return {q, slope, (x.curve - chained(q, y.curve) - 2.0f * chained(slope, y.slope)) / y.value};
  }
  friend DEV Curve operator/(Curve x, float y) { return {x.value / y, x.slope / y, x.curve / y}; }
  friend DEV Curve operator/(float x, Curve y) { return Curve(x) / y; }

  friend DEV bool operator<(Curve x, Curve y) { return x.value < y.value; }
  friend DEV bool operator<=(Curve x, Curve y) { return x.value <= y.value; }
  friend DEV bool operator>(Curve x, Curve y) { return x.value > y.value; }
  friend DEV bool operator>=(Curve x, Curve y) { return x.value >= y.value; }
  friend DEV bool operator==(Curve x, Curve y) { return x.value == y.value; }
  friend DEV bool operator!=(Curve x, Curve y) { return x.value != y.value; }
};

// f(x) of f's value and its first two derivatives there.
DEV Curve curved(Curve x, float f, float slope, float curve) {
  return {f, chained(slope, x.slope), chained(slope, x.curve) + chained(curve, x.slope * x.slope)};
}

// Returns the first of two equal numbers, and the number of a NaN and a number.
DEV Curve fmin(Curve x, Curve y) {
  const Curve z = y.value < x.value ? y : x;
  return {::fminf(x.value, y.value), z.slope, z.curve};
}
DEV Curve fmax(Curve x, Curve y) {
  const Curve z = x.value < y.value ? y : x;
  return {::fmaxf(x.value, y.value), z.slope, z.curve};
}
DEV Curve fminf(Curve x, Curve y) { return fmin(x, y); }
DEV Curve fmaxf(Curve x, Curve y) { return fmax(x, y); }
DEV Curve min(Curve x, Curve y) { return fmin(x, y); }
DEV Curve max(Curve x, Curve y) { return fmax(x, y); }
DEV Curve abs(Curve x) {
  const float sign = x.value < 0.0f ? -1.0f : 1.0f;
  return {::fabsf(x.value), sign * x.slope, sign * x.curve};
}
DEV Curve exp(Curve x) {
  const float y = ::expf(x.value);
  return curved(x, y, y, y);
}
DEV Curve exp2(Curve x) {
  constexpr float kLn = static_cast<float>(kLn2);
  const float y = ::exp2f(x.value);
  return curved(x, y, kLn * y, kLn * kLn * y);
}
DEV Curve log(Curve x) {
  const float slope = 1.0f / x.value;
  return curved(x, ::logf(x.value), slope, -slope * slope);
}
DEV Curve log2(Curve x) {
  const float slope = static_cast<float>(kLog2e) / x.value;
  return curved(x, ::log2f(x.value), slope, -slope / x.value);
}
DEV Curve sqrt(Curve x) {
  const float y = ::sqrtf(x.value), slope = 0.5f / y;
  return curved(x, y, slope, -0.5f * slope / x.value);
}
DEV Curve tanh(Curve x) {
  const float y = tanh_of(x.value), slope = 1.0f - y * y;
  return curved(x, y, slope, -2.0f * y * slope);
}
DEV Curve sin(Curve x) {
  const float y = ::sinf(x.value);
  return curved(x, y, ::cosf(x.value), -y);
}
DEV Curve cos(Curve x) {
  const float y = ::cosf(x.value);
  return curved(x, y, -::sinf(x.value), -y);
}
DEV Curve floor(Curve x) { return ::floorf(x.value); }
DEV Curve ceil(Curve x) { return ::ceilf(x.value); }
// As C names them.
DEV Curve fabs(Curve x) { return abs(x); }
DEV Curve fabsf(Curve x) { return abs(x); }
DEV Curve expf(Curve x) { return exp(x); }
DEV Curve exp2f(Curve x) { return exp2(x); }
DEV Curve logf(Curve x) { return log(x); }
DEV Curve log2f(Curve x) { return log2(x); }
DEV Curve sqrtf(Curve x) { return sqrt(x); }
DEV Curve tanhf(Curve x) { return tanh(x); }
DEV Curve sinf(Curve x) { return sin(x); }
DEV Curve cosf(Curve x) { return cos(x); }
DEV Curve floorf(Curve x) { return floor(x); }
DEV Curve ceilf(Curve x) { return ceil(x); }

// Where the user gives none. Never called.
#if !defined(ONEPASS_SCORE_CURVE)
DEV Curve score_mod(Curve score, i32, i32, i32, i32, const ModBufferView*) { return score; }
#endif

}  // namespace onepass::user
