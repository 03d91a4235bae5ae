// Tensor maps for TMA.
#pragma once
#include <array>
#include <cstdint>

#include "cuda/driver/api.hpp"
#include "onepass/tensor.hpp"

namespace onepass::cuda {

// A map but for the address of its tensor: [sizes[3], sizes[2], sizes[1], sizes[0]] of fp32, fp16, bf16 or fp8_e4m3
// (sizes[0] innermost, stride 1), read and written in boxes of 128 bytes of columns x `rows`, swizzled by 128 bytes.
// Elements outside arrive as zeros.
struct TensorMapShape {
  TensorMapShape() = default;
  // strides in elements, 0 repeats
  TensorMapShape(DType of, const std::array<std::int64_t, 4>& extents, const std::array<std::int64_t, 3>& strides,
                 int box_rows);

  DType dtype{};
  std::array<std::uint64_t, 4> sizes{};         // at least 1
  std::array<std::uint64_t, 3> byte_strides{};  // of sizes[1] to sizes[3]
  std::uint32_t rows = 0;
};
TensorMap tensor_map(const void* data, const TensorMapShape& shape);
using MapTensor = decltype(&tensor_map);  // or a test's

}  // namespace onepass::cuda
