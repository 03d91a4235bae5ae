// The parts of a softmax and its backward in a problem, in a call's tensors and in a layout.
#pragma once
#include "onepass/tensor.hpp"

namespace onepass {

struct SoftmaxFields {
  bool log = false;       // y is the logarithm
  bool lse_only = false;  // a forward writes the LSE and not y
  bool row_lse = false;   // of a forward: y by the rows' LSEs that are given
  friend bool operator==(const SoftmaxFields&, const SoftmaxFields&) = default;
};
struct SoftmaxTensorFields {  // beside bool_mask and lse
  ConstTensor x{}, row_lse{};
  Tensor y{};  // a backward reads it
  ConstTensor dy{};
  Tensor dx{};
};
struct SoftmaxLayout {
  Dims x{}, y{}, dy{}, dx{};  // [batch, heads, rows, keys]
  Dims row_lse{};             // as lse
  friend bool operator==(const SoftmaxLayout&, const SoftmaxLayout&) = default;
};

}  // namespace onepass
