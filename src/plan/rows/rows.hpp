// Rows [batch, heads, rows, dim] of one tensor to those of another, on the CPU or a device.
#pragma once
#include "onepass/launch.hpp"
#include "onepass/tensor.hpp"

namespace onepass::plan {

// to = from, of one dtype, or rounded from fp32; to += from, both fp32; or to = the larger of both, or NaN where one
// is, both fp32. Equal shapes of rank 4.
void copy(const ConstTensor& from, const Tensor& to, const Launch& launch);
void add(const ConstTensor& from, const Tensor& to, const Launch& launch);
void take_larger(const ConstTensor& from, const Tensor& to, const Launch& launch);

// One value everywhere in an fp32 tensor without gaps; fill_empty: -inf, the LSE and the maximum of rows without keys.
void fill(const Tensor& t, float value, const Launch& launch);
void fill_empty(const Tensor& t, const Launch& launch);

// The row maxima of merged parts share no memory with the results of the merge, which does not know them. Each may not
// be given. Throws Error.
void check_maxima_apart(const ConstTensor& row_max, const ConstTensor& out, const ConstTensor& lse);

// A tensor [batch, heads, rows] with a column, and without it.
template <class AnyTensor>
AnyTensor as_column(AnyTensor t) {
  if (!t.given()) return t;
  t.rank = 4;
  t.shape[3] = t.stride[3] = 1;
  return t;
}
template <class AnyTensor>
AnyTensor without_column(AnyTensor t) {
  if (t.given()) t.rank = 3;
  return t;
}

}  // namespace onepass::plan
