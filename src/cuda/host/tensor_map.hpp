// Tensor maps for TMA.
#pragma once
#include <array>
#include <cstdint>

#include "cuda/driver/api.hpp"
#include "onepass/tensor.hpp"

namespace onepass::cuda {

// A map over a tensor [sizes[3], sizes[2], sizes[1], sizes[0]] of fp32, fp16 or bf16 (sizes[0] innermost, stride 1;
// strides in elements, 0 repeats), read and written in boxes of 128 bytes of columns x `rows`, swizzled by 128 bytes.
// Elements outside arrive as zeros.
TensorMap tensor_map(const void* data, DType dtype, const std::array<std::int64_t, 4>& sizes,
                     const std::array<std::int64_t, 3>& strides, int rows);

}  // namespace onepass::cuda
