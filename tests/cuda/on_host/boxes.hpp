// cuda::tensor_map without a driver: boxes for the stubs of TMA (hopper.hpp).
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cuda/host/tensor_map.hpp"
#include "on_host/hopper.hpp"

namespace onepass {

inline cuda::TensorMap boxes_of(const void* data, DType dtype, const std::array<std::int64_t, 4>& sizes,
                                const std::array<std::int64_t, 3>& strides, int rows) {
  warps::TensorBox box{};
  box.data = static_cast<unsigned char*>(const_cast<void*>(data));
  box.rows = static_cast<unsigned>(rows);
  box.element_bytes = static_cast<unsigned>(size_of(dtype));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 16, 0u);
  for (std::size_t i = 0; i < 4; ++i) box.size[i] = static_cast<std::uint64_t>(std::max<std::int64_t>(1, sizes[i]));
  for (std::size_t i = 0; i < 3; ++i) {
    box.stride[i] = sizes[i + 1] > 1 ? size_of(dtype) * static_cast<std::uint64_t>(strides[i]) : 16;
    EXPECT_EQ(box.stride[i] % 16, 0u);
  }
  cuda::TensorMap map{};
  std::memcpy(&map, &box, sizeof box);
  return map;
}

}  // namespace onepass
