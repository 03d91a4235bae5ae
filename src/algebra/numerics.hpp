// Rounding between fp32 and the narrow formats, by bits, so that every machine gives the same answer.
#pragma once
#include <bit>
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

// Storage types: the bits and nothing else.
struct bf16 {
  std::uint16_t bits = 0;
};
struct f16 {
  std::uint16_t bits = 0;
};
struct f8e4m3 {
  std::uint8_t bits = 0;  // OCP E4M3: no infinities, largest finite 448, NaN = 0x7f
};

constexpr float to_float(float x) { return x; }
constexpr float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
constexpr float to_float(f16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24
    const float v = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -v : v;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}
constexpr float to_float(f8e4m3 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x80u} << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8u) {
    const float v = static_cast<float>(magnitude) * 0x1p-9f;
    return sign ? -v : v;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest, ties to even. NaN stays NaN (quiet); overflow goes to infinity in fp16 and bf16.
template <class T>
constexpr T from_float(float x);
template <>
constexpr float from_float<float>(float x) {
  return x;
}
template <>
constexpr bf16 from_float<bf16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <>
constexpr f16 from_float<f16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), sign = (u >> 16) & 0x8000u;
  std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (a >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or is infinite
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the subnormal's bits and rounds them
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + 0.5f);
    return {static_cast<std::uint16_t>(sign | (bits - 0x3f000000u))};
  }
  a += 0xfffu + ((a >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((a - (112u << 23)) >> 13))};
}
// Saturates: |x| > 448 becomes 448 (as Hopper's cvt.satfinite does).
template <>
constexpr f8e4m3 from_float<f8e4m3>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), sign = (u >> 24) & 0x80u;
  std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<std::uint8_t>(sign | 0x7fu)};
  if (a >= 0x43e00000u) return {static_cast<std::uint8_t>(sign | 0x7eu)};
  if (a < 0x3c800000u) {  // below 2^-6: steps of 2^-9
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + 0x1p14f);
    return {static_cast<std::uint8_t>(sign | (bits - 0x46800000u))};
  }
  a += 0x7ffffu + ((a >> 20) & 1u);
  return {static_cast<std::uint8_t>(sign | ((a - (120u << 23)) >> 20))};
}

// To 11 significant bits, which tf32 products read: to nearest, ties away from 0 (PTX's cvt.rna.tf32.f32). NaN stays
// NaN, and a number beyond the largest becomes infinite.
constexpr float round_to_tf32(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : std::bit_cast<float>((u + 0x1000u) & 0xffffe000u);
}

// Element `index` of a typed buffer as fp32, and back.
float load_element(const void* data, DType dtype, std::int64_t index);
void store_element(void* data, DType dtype, std::int64_t index, float value);

// Calls f with a value of the storage type of a floating dtype.
template <class F>
decltype(auto) with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::f8e4m3: return f(f8e4m3{});
    default: return f(float{});
  }
}

}  // namespace onepass
