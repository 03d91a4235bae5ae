// The element types of tensors on a device, for the host and the device half.
#pragma once
#include "algebra/portable.hpp"

namespace onepass {

enum class ScalarType : int { none, f32, f16, bf16, e4m3 };
ONEPASS_HD constexpr int bytes_of(ScalarType t) {
  switch (t) {
    case ScalarType::none: return 0;
    case ScalarType::f32: return 4;
    case ScalarType::f16:
    case ScalarType::bf16: return 2;
    case ScalarType::e4m3: return 1;
  }
  return 0;
}
ONEPASS_HD constexpr int padded(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace onepass
