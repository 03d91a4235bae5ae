// The parts of a flat GEMM and a linear in a problem, in a call's tensors and in a layout.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

struct GemmFields {
  std::int64_t m = 0, n = 0, k = 0;
  bool column_bias = false;
  friend bool operator==(const GemmFields&, const GemmFields&) = default;
};
struct GemmTensorFields {  // beside x and y
  ConstTensor w{}, column_bias{};
};
struct GemmLayout {  // [n, k], as x and y then have two, and [n]
  Dims w{}, column_bias{};
  friend bool operator==(const GemmLayout&, const GemmLayout&) = default;
};

}  // namespace onepass
