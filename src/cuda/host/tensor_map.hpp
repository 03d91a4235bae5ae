// Tensor maps for TMA.
#pragma once
#include <array>
#include <cstdint>

#include "cuda/host/api.hpp"

namespace onepass::cuda {

// A map over a tensor of 16-bit elements [sizes[3], sizes[2], sizes[1], sizes[0]] (sizes[0] innermost, stride 1;
// strides in elements), read and written in boxes of 64 columns x `rows`, swizzled by 128 bytes. Elements outside
// arrive as zeros.
TensorMap tensor_map_16(void* data, bool bf16, const std::array<std::int64_t, 4>& sizes,
                        const std::array<std::int64_t, 3>& strides, int rows);

}  // namespace onepass::cuda
