// The functions of expressions over plain numbers, for the oracle.
#pragma once
#include <cmath>

#include "expression/eval.hpp"

namespace onepass {

struct ScalarFunctions {
  template <class F>
  static void apply(ExprCode code, const F* in, F* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = of(code, in[i]);
  }
  template <class F>
  static F of(ExprCode code, F x) {
    switch (code) {
      case ExprCode::exp: return std::exp(x);
      case ExprCode::exp2: return std::exp2(x);
      case ExprCode::log: return std::log(x);
      case ExprCode::log2: return std::log2(x);
      case ExprCode::sqrt: return std::sqrt(x);
      case ExprCode::tanh: return std::tanh(x);
      case ExprCode::sin: return std::sin(x);
      case ExprCode::cos: return std::cos(x);
      case ExprCode::floor: return std::floor(x);
      default: return std::ceil(x);
    }
  }
};

}  // namespace onepass
