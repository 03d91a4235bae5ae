// Element types that C++20 has no name for, as their bits, and the dtype of each type.
#pragma once
#include <cstdint>
#include <type_traits>

#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// Storage types: the bits and nothing else.
struct bfloat16 {
  std::uint16_t bits = 0;
};
struct float16 {
  std::uint16_t bits = 0;
};
struct float8_e4m3 {
  std::uint8_t bits = 0;  // OCP E4M3: no infinities, largest finite 448, NaN = 0x7f
};

// dtype_of<T>: the dtype whose elements a T holds. A program may say it of its own types:
//   template <> inline constexpr onepass::DType onepass::dtype_of<__half> = onepass::DType::f16;
struct NoDType {};
template <class T>
inline constexpr NoDType dtype_of{};
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<float16> = DType::f16;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<float8_e4m3> = DType::f8e4m3;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;

// A type that has a dtype.
template <class T>
concept Element = std::is_same_v<std::remove_cv_t<decltype(dtype_of<std::remove_cv_t<T>>)>, DType>;

}  // namespace onepass::inline v0
