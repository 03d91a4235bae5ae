// The parts that all textbooks share: the operands of products, and the softmax of a row in two passes.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::reference {

// The number that a product reads of an element of q, k, v, dO or a tangent: with precision=tf32 the rounded one. An
// element whose rounding would be infinite is itself: kernels compute its rows in fp32.
template <class T>
T operand(const Problem& p, T x) {
  if (p.precision == Precision::fp32) return x;
  const float rounded = round_to_tf32(static_cast<float>(x));
  return std::isfinite(rounded) ? static_cast<T>(rounded) : x;
}

template <class T>
struct Normalizer {
  T m, l;      // the maximum (0 if empty) and the sum of weights, sink included
  T sink;      // the sink's weight
  bool empty;  // no key is visible and there is no sink
};

// A head's sink logit, -inf without one.
template <class T>
T sink_of(const Problem& p, const Tensors& a, std::int64_t head) {
  return p.sinks ? static_cast<T>(static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]])
                 : Arith<T>::neg_inf();
}

// w = e^(s - m), 0 where s is -inf. A row whose scores are all -inf has its sink alone, or nothing.
template <class T>
Normalizer<T> weights_of(const std::vector<T>& s, T sink, std::vector<T>& w) {
  T m = Arith<T>::neg_inf(), l = 0;
  for (const T x : s) m = Arith<T>::max(m, x);
  m = Arith<T>::max(m, sink);
  const bool empty = m == Arith<T>::neg_inf();
  m = finite_ref(m);
  w.resize(s.size());
  for (std::size_t j = 0; j < s.size(); ++j) {
    w[j] = s[j] == Arith<T>::neg_inf() ? T(0) : std::exp(s[j] - m);
    l += w[j];
  }
  const T sink_weight = std::exp(sink - m);
  return {m, l + sink_weight, sink_weight, empty};
}

}  // namespace onepass::reference
