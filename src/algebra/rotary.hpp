// Rotary position embedding of a pair of elements (RoFormer, arXiv:2104.09864, equation 34). One definition for the CPU
// and for CUDA: two products, each rounded, and their sum, rounded; never fused, so that both give the same bits.
#pragma once
#include "algebra/online_softmax.hpp"

ONEPASS_BEGIN

template <class V>
struct RotaryPair {
  V x, y;
};
template <class V>
ONEPASS_HD RotaryPair<V> rotated(RotaryPair<V> p, V cos, V sin) {
  using A = Arith<V>;
  return {A::mul(p.x, cos) - A::mul(p.y, sin), A::mul(p.y, cos) + A::mul(p.x, sin)};
}

ONEPASS_END
