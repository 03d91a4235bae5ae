// cuda::tensor_map without a driver: boxes for the stubs of TMA (hopper.hpp).
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cuda/host/tensor_map.hpp"
#include "on_host/hopper.hpp"

namespace onepass {

inline cuda::TensorMap boxes_of(const void* data, const cuda::TensorMapShape& shape) {
  warps::TensorBox box{};
  box.data = static_cast<unsigned char*>(const_cast<void*>(data));
  box.rows = shape.rows;
  box.element_bytes = static_cast<unsigned>(size_of(shape.dtype));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 16, 0u);
  std::ranges::copy(shape.sizes, box.size);
  std::ranges::copy(shape.byte_strides, box.stride);
  for (const std::uint64_t stride : shape.byte_strides) EXPECT_EQ(stride % 16, 0u);
  cuda::TensorMap map{};
  std::memcpy(&map, &box, sizeof box);
  return map;
}

}  // namespace onepass
