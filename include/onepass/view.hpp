// Typed views: tensors whose dtype is that of their elements, so that the two cannot disagree.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "onepass/element.hpp"
#include "onepass/error.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// View<const bfloat16> is an input, View<bfloat16> an output or an input. Either stands where a ConstTensor or a Tensor
// is expected:
//   onepass::View<const onepass::bfloat16> q(data, {batch, heads, seq, dim});
template <Element T>
class View : public BasicTensor<std::conditional_t<std::is_const_v<T>, const void, void>> {
  using Base = BasicTensor<std::conditional_t<std::is_const_v<T>, const void, void>>;

 public:
  // Row-major over the sizes, or with strides in elements.
  View(T* numbers, std::initializer_list<std::int64_t> sizes, Device where = {})
      : Base(numbers, dtype_of<std::remove_cv_t<T>>, sizes, where) {}
  View(T* numbers, std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
       Device where = {})
      : Base(numbers, dtype_of<std::remove_cv_t<T>>, sizes, strides, where) {}
  View(T* numbers, std::span<const std::int64_t> sizes, Device where = {})
      : View(numbers, std::initializer_list<std::int64_t>{}, where) {
    if (sizes.size() > kMaxRank)
      throw Error(ErrorCode::bad_shape,
                  "a tensor must have at most 4 dimensions (got " + std::to_string(sizes.size()) + ")");
    this->rank = static_cast<int>(sizes.size());
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0; step *= sizes[i]) this->shape[i] = sizes[i], this->stride[i] = step;
  }
  View(T* numbers, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, Device where = {})
      : View(numbers, sizes, where) {
    if (strides.size() != sizes.size())
      throw Error(ErrorCode::bad_shape, "a tensor must have one stride for each of its " +
                                            std::to_string(sizes.size()) + " sizes (got " +
                                            std::to_string(strides.size()) + ")");
    std::copy(strides.begin(), strides.end(), this->stride.begin());
  }
};

// view(data, {rows, columns}): the view of what `data` points to.
template <Element T>
View<T> view(T* elements, std::initializer_list<std::int64_t> sizes, Device where = {}) {
  return {elements, sizes, where};
}
template <Element T>
View<T> view(T* elements, std::span<const std::int64_t> sizes, Device where = {}) {
  return {elements, sizes, where};
}

}  // namespace onepass::inline v0
