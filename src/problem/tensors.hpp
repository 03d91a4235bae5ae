// The tensors of a call of any operator by role, as the table of tensors (roles.hpp) walks them.
#pragma once
#include "onepass/attention.hpp"
#include "problem/append/fields.hpp"
#include "problem/gemm/fields.hpp"
#include "problem/merge/fields.hpp"
#include "problem/quantize/fields.hpp"
#include "problem/softmax/fields.hpp"

namespace onepass {

struct Tensors : AttentionTensors,
                 AppendTensorFields,
                 GemmTensorFields,
                 MergeTensorFields,
                 QuantizeTensorFields,
                 SoftmaxTensorFields {
  Tensors() = default;
  Tensors(const AttentionTensors& tensors) : AttentionTensors(tensors) {}
};

}  // namespace onepass
