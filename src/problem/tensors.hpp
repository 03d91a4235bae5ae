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

// The derivatives of gradients in the places of the gradients: code that sums up one sums up the other.
inline Tensors with_derivatives_as_gradients(Tensors t) {
  t.dq = t.tdq, t.dk = t.tdk, t.dv = t.tdv;
  t.dbias = t.tdbias, t.dsinks = t.tdsinks, t.dalibi_slopes = t.tdalibi_slopes;
  return t;
}

}  // namespace onepass
