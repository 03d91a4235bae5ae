#include "tools/onepass/io/array.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstring>

#include "onepass/error.hpp"

namespace onepass::io {

std::string shape_text(const Shape& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::int64_t elements_of(const std::string& name, const Shape& shape) {
  std::int64_t bound = 1, elements = 1;  // bound: with empty dimensions counted as 1, so that strides fit too
  for (std::int64_t size : shape) {
    if (size < 0) throw Error(ErrorCode::bad_shape, text(name, " has a negative size in ", shape_text(shape)));
    if (__builtin_mul_overflow(bound, std::max<std::int64_t>(size, 1), &bound) || bound > (std::int64_t{1} << 62)) {
      throw Error(ErrorCode::bad_shape,
                  text(name, " has shape ", shape_text(shape), ", which is more than 2^62 elements"));
    }
    elements *= size;
  }
  return elements;
}

Array::Array(const std::string& name, DType dtype, Shape shape) : name_(name), dtype_(dtype), shape_(std::move(shape)) {
  const std::int64_t elements = elements_of(name_, shape_);
  if (__builtin_mul_overflow(static_cast<std::size_t>(elements), size_of(dtype), &bytes_)) bytes_ = SIZE_MAX;
  void* memory = bytes_ <= PTRDIFF_MAX
                     ? ::operator new(std::max<std::size_t>(bytes_, 1), std::align_val_t{64}, std::nothrow)
                     : nullptr;
  if (!memory) throw Error(ErrorCode::out_of_memory, text("no memory for the ", elements, " elements of ", name_));
  data_.reset(static_cast<std::byte*>(std::memset(memory, 0, bytes_)));
}

Tensor Array::view() const {
  if (shape_.empty() || shape_.size() > kMaxRank) {
    throw Error(ErrorCode::bad_shape,
                text(name_, " must have 1 to ", kMaxRank, " dimensions (got ", shape_.size(), ")"));
  }
  Tensor t;
  t.data = data_.get();
  t.dtype = dtype_;
  t.rank = static_cast<int>(shape_.size());
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.shape[i] = shape_[i];
    t.stride[i] = step;
    step *= std::max<std::int64_t>(shape_[i], 1);
  }
  return t;
}

}  // namespace onepass::io
