// Fragments: the elements of a tile that a lane holds in registers. Every index is a constant once loops are unrolled.
//
// A fragment is an array and not a class: functions deduce its size, and instructions take its parts as operands.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

template <class T, int N>
using Fragment = T[N];

// An accumulator's lane 4 g + t has rows g and g + 8: the row of element j, 0 or 1.
DEV constexpr int row_of_element(int j) { return j >> 1 & 1; }

// f(j, x[j]) for every element.
template <class T, int N, class F>
DEV void each(T (&x)[N], const F& f) {
#pragma unroll
  for (int j = 0; j < N; ++j) f(j, x[j]);
}
template <int N>
DEV void fill(float (&x)[N], float with) {
  each(x, [&](int, float& y) { y = with; });
}
template <int N>
DEV void multiply(float (&x)[N], float by) {
  each(x, [&](int, float& y) { y *= by; });
}
// The two rows of an accumulator.
template <int N>
DEV void multiply_two_rows(float (&x)[N], float first, float second) {
  each(x, [&](int j, float& y) { y *= row_of_element(j) == 0 ? first : second; });
}

}  // namespace onepass
