// A tensor with memory of its own: what the readers return and `onepass run` computes into.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "onepass/tensor.hpp"

namespace onepass::io {

using Shape = std::vector<std::int64_t>;

// Number of elements; throws bad_shape if a size is negative or they are more than 2^62. `name` begins the sentence.
std::int64_t elements_of(const std::string& name, const Shape& shape);

// Row-major, zero-filled, aligned to 64 bytes.
class Array {
 public:
  Array(const std::string& name, DType dtype, Shape shape);
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return data_.get(); }
  Tensor view() const;  // throws bad_shape unless it has 1 to 4 dimensions

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::string name_;
  DType dtype_;
  Shape shape_;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

std::string shape_text(const Shape& shape);  // "[2, 16, 1024, 128]"

}  // namespace onepass::io
