// Memory and rows of tensors [batch, heads, rows, dim], wherever they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "onepass/context_parallel.hpp"
#include "onepass/launch.hpp"
#include "onepass/tensor.hpp"
#include "plan/rows/rows.hpp"
#include "plan/scratch.hpp"

namespace onepass::inline v0::context_parallel {

using Index = std::int64_t;
using plan::add, plan::as_column, plan::copy, plan::fill, plan::fill_empty, plan::take_larger, plan::without_column;

// A tensor with memory of its own, where the call's tensors are; freed in the order of the stream.
class Owned {
 public:
  Owned(DType dtype, std::initializer_list<Index> shape, Device device, const Launch& launch);
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  Scratch memory_;
};

// Elements `range` of a dimension.
template <class AnyTensor>
AnyTensor slice(AnyTensor t, std::size_t dim, Range range) {
  using Byte = std::conditional_t<std::is_same_v<AnyTensor, Tensor>, std::byte, const std::byte>;
  if (!t.given()) return t;
  if (!range.empty()) t.data = static_cast<Byte*>(t.data) + range.begin * t.stride[dim] * Index(size_of(t.dtype));
  t.shape[dim] = range.size();
  return t;
}
// The same of a tensor that may be repeated along the dimension.
template <class AnyTensor>
AnyTensor slice_repeated(const AnyTensor& t, std::size_t dim, Range range) {
  return t.shape[dim] == 1 ? t : slice(t, dim, range);
}
template <class AnyTensor>
AnyTensor rows_of(const AnyTensor& t, Range rows) {
  return slice(t, 2, rows);
}

// fp32 zeros, as a tensor of any shape.
class Zeros {
 public:
  Zeros(Index dim, Device device, const Launch& launch);  // dim: the largest last dimension
  ConstTensor like(const ConstTensor& t) const;

 private:
  Owned memory_;
};

// int32 [n] where the call's tensors are.
Owned on_device(std::span<const std::int32_t> values, Device device, const Launch& launch);

}  // namespace onepass::inline v0::context_parallel
