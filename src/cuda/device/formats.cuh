// Elements of tensors in memory, by their type.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/device/config.hpp"

namespace onepass {

template <ScalarType>
struct ElementOf;
template <>
struct ElementOf<ScalarType::f32> {
  using Format = F32;
};
template <>
struct ElementOf<ScalarType::f16> {
  using Format = F16;
};
template <>
struct ElementOf<ScalarType::bf16> {
  using Format = Bf16;
};

template <>
struct ElementOf<ScalarType::e4m3> {
  using Format = E4m3;
};

template <ScalarType type>
DEV float element_at(const void* base, i64 at) {
  using Format = typename ElementOf<type>::Format;
  return Format::unpack(static_cast<const typename Format::Raw*>(base)[at]);
}

template <i32 bytes>
struct alignas(bytes) Bytes {  // of global memory, read at once
  u32 word[bytes / 4];
};

}  // namespace onepass
