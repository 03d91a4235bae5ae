// A stub for src/cuda/device/math.cuh: what the instructions round, rounded once.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

DEV float ex2(float x) { return std::exp2(x); }
DEV float lg2(float x) { return std::log2(x); }
DEV float rcp(float x) { return 1 / x; }
DEV float min_or_nan(float x, float y) { return x < y || x != x ? x : y; }

DEV float max_or_nan(float x, float y) { return x > y || x != x ? x : y; }

DEV u32 bits_e4m3(float x) {
  const u32 sign = std::bit_cast<u32>(x) >> 24 & 0x80;
  const float size = std::abs(x);
  if (x != x) return 0x7f;
  if (size >= 448) return sign | 0x7e;
  i32 exponent;
  std::frexp(size, &exponent);  // size = [1/2, 1) * 2^exponent
  const float unit = std::ldexp(1.0f, std::max(exponent - 4, -9)), rounded = std::nearbyint(size / unit) * unit;
  for (u32 code = 0; code < 0x7f; ++code) {
    const i32 e = code >> 3, digits = code & 7;
    if (rounded ==
        (e == 0 ? std::ldexp(static_cast<float>(digits), -9) : std::ldexp(static_cast<float>(8 + digits), e - 10)))
      return sign | code;
  }
  return sign | 0x7e;
}
DEV u32 pack_e4m3(float a, float b, float c, float d) {
  return bits_e4m3(a) | bits_e4m3(b) << 8 | bits_e4m3(c) << 16 | bits_e4m3(d) << 24;
}
DEV float unpack_e4m3(unsigned char x) {
  const u32 size_bits = x & 0x7f;
  if (size_bits == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float size =
      size_bits < 8 ? static_cast<float>(size_bits) * 0x1p-9f : std::bit_cast<float>((size_bits << 20) + (120u << 23));
  return x >> 7 ? -size : size;
}
DEV u32 choose_bytes(u32 a, u32 b, u32 selector) {
  const u64 both = a | static_cast<u64>(b) << 32;
  u32 y = 0;
  for (u32 i = 0; i < 4; ++i) y |= static_cast<u32>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return y;
}

DEV u32 bits_bf16(float x) {
  const u32 bits = std::bit_cast<u32>(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEV u32 pack_bf16(float lo, float hi) { return bits_bf16(lo) | bits_bf16(hi) << 16; }
DEV u32 bits_f16(float x) {
  const float size = std::abs(x);
  const u32 sign = std::bit_cast<u32>(x) >> 16 & 0x8000, bits = std::bit_cast<u32>(size);
  if (x != x) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | static_cast<u32>(std::nearbyint(size * 0x1p24f));
  return sign | (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
}
DEV u32 pack_f16(float lo, float hi) { return bits_f16(lo) | bits_f16(hi) << 16; }
template <i32 half>
DEV u32 unpack_pair_e4m3(u32 x) {
  const auto one = [&](i32 byte) { return unpack_e4m3(static_cast<unsigned char>(x >> 8 * byte)); };
  return pack_f16(one(2 * half), one(2 * half + 1));
}
DEV float unpack_f16(u16 x) {
  const u32 size_bits = x & 0x7fff;
  const float size = size_bits < 0x400    ? static_cast<float>(size_bits) * 0x1p-24f
                     : size_bits < 0x7c00 ? std::bit_cast<float>((size_bits << 13) + (112u << 23))
                     : size_bits > 0x7c00 ? std::numeric_limits<float>::quiet_NaN()
                                          : std::numeric_limits<float>::infinity();
  return x >> 15 ? -size : size;
}

template <i32 half>
DEV float unpack_bf16_again(u32 x) {
  return std::bit_cast<float>(half == 0 ? x << 16 : x & 0xffff0000u);
}
template <i32 half>
DEV float unpack_f16_again(u32 x) {
  return unpack_f16(static_cast<u16>(half == 0 ? x : x >> 16));
}
// The larger of each half; a NaN gives way to a number.
template <class Unpack>
DEV u32 max_halves(u32 x, u32 y, Unpack unpack) {
  const auto one = [&](u16 a, u16 b) {
    const float p = unpack(a), q = unpack(b);
    return p != p || p < q ? b : a;
  };
  return one(static_cast<u16>(x), static_cast<u16>(y)) |
         static_cast<u32>(one(static_cast<u16>(x >> 16), static_cast<u16>(y >> 16))) << 16;
}
DEV u32 max_bf16x2(u32 x, u32 y) {
  return max_halves(x, y, [](u16 h) { return std::bit_cast<float>(static_cast<u32>(h) << 16); });
}
DEV u32 max_f16x2(u32 x, u32 y) { return max_halves(x, y, unpack_f16); }

DEV u32 times_zero_plus_bf16(u32 x, u32 y) {
  const auto one = [](u32 a, u32 b) { return (a & 0x7f80) == 0x7f80 ? 0x7fff : b & 0xffff; };
  return one(x, y) | one(x >> 16, y >> 16) << 16;
}
DEV u32 times_zero_plus_f16(u32 x, u32 y) {
  const auto one = [](u32 a, u32 b) { return (a & 0x7c00) == 0x7c00 ? 0x7fff : b & 0xffff; };
  return one(x, y) | one(x >> 16, y >> 16) << 16;
}

}  // namespace onepass
