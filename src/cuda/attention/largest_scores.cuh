// The largest scores of a lane's two rows so far: a lazy step's reference is not their maximum. Where they are not
// asked for there is nothing.
//
// One instruction of Hopper compares three integers, but two floats. Floats that are not negative have the order of
// their bits as integers, and all negative ones are less. Where a row's largest score is not negative, integers find it
// by half an instruction a score. A warp that has another row compares floats.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/mma/fragment.cuh"

namespace onepass {

template <bool kAsked>
struct LargestScores {
  DEV void forget() {}
  template <int N>
  DEV void see(const float (&)[N], float) {}
  template <int N>
  DEV void see_bits(const float (&)[N], float) {}
  template <int N, class Fits>
  DEV bool see_bits_and_ask(const float (&)[N], const Fits&) {
    return false;
  }
  DEV void see_maxima(const float (&)[2], float) {}
  DEV void to_unit(float) {}
  DEV float largest_of(int) const { return kNegInf; }
};
template <>
struct LargestScores<true> {
  float largest[2] = {kNegInf, kNegInf};

  DEV void forget() { largest[0] = largest[1] = kNegInf; }
  // unit: what takes these scores to the unit of `largest`, which is the natural one at the end.
  template <int N>
  DEV void see(const float (&s)[N], float unit) {
    float part[2] = {kNegInf, kNegInf};
#pragma unroll
    for (int j = 0; j < N; ++j) part[row_of_element(j)] = fmaxf(part[row_of_element(j)], s[j]);
    see_maxima(part, unit);
  }
  DEV void see_maxima(const float (&tile_max)[2], float unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], tile_max[i] * unit);
  }
  // see(), by all lanes of a warp.
  template <int N>
  DEV void see_bits(const float (&s)[N], float unit) {
    i32 part[2] = {__float_as_int(-0.0f), __float_as_int(-0.0f)};  // the least integer
    compare_bits(s, part);
    see_maxima({__int_as_float(part[0]), __int_as_float(part[1])}, unit);
    if (!__all_sync(0xffffffffu, largest[0] >= 0.0f && largest[1] >= 0.0f)) see(s, unit);
  }
  // The same for scores in the unit of `largest`. Tells the whole warp whether fits(i, x) is true for x, the largest
  // score of a lane's row i so far. A NaN among the scores is left out.
  template <int N, class Fits>
  DEV bool see_bits_and_ask(const float (&s)[N], const Fits& fits) {
    i32 most[2] = {__float_as_int(largest[0]), __float_as_int(largest[1])};
    compare_bits(s, most);
    const float x[2] = {__int_as_float(most[0]), __int_as_float(most[1])};
    if (__all_sync(0xffffffffu, most[0] >= 0 && most[1] >= 0 && fits(0, x[0]) && fits(1, x[1]))) {
      largest[0] = x[0], largest[1] = x[1];
      return true;
    }
    see(s, 1.0f);
    return __all_sync(0xffffffffu, fits(0, largest[0]) && fits(1, largest[1]));
  }
  DEV void to_unit(float unit) { largest[0] *= unit, largest[1] *= unit; }
  DEV float largest_of(int i) const { return quad_max(largest[i]); }

 private:
  template <int N>
  static DEV void compare_bits(const float (&s)[N], i32 (&most)[2]) {
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      i32& x = most[row_of_element(j)];
      x = max(max(x, __float_as_int(s[j])), __float_as_int(s[j + 1]));
    }
  }
};

}  // namespace onepass
