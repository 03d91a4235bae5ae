// Elements of tensors in memory, by type.
#pragma once
#include "cuda/device/arith.cuh"

#include "cuda/attention/forward.hpp"

namespace onepass {

template <Type>
struct ElementOf;
template <>
struct ElementOf<Type::f32> {
  using Format = F32;
};
template <>
struct ElementOf<Type::f16> {
  using Format = F16;
};
template <>
struct ElementOf<Type::bf16> {
  using Format = Bf16;
};
using Element = ElementOf<features.input>::Format;  // of q, k and v

template <Type type>
DEV float element_at(const void* base, i64 at) {
  using Format = typename ElementOf<type>::Format;
  return Format::unpack(static_cast<const typename Format::Raw*>(base)[at]);
}
DEV void write_out(const ForwardParams& p, i64 at, float value) {
  using Format = ElementOf<features.output>::Format;
  static_cast<Format::Raw*>(p.out)[at] = Format::round(value);
}

}  // namespace onepass
