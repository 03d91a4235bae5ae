// Numbers to and from e4m3 on every architecture: compute capability 8.9 and later have instructions for it.
#pragma once
#include "cuda/device/arith.cuh"

namespace onepass {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
// To nearest, ties to even; beyond 448 they stay there, and NaN stays NaN. As algebra/numerics.hpp has it.
DEV u32 one_to_e4m3(float x) {
  const u32 u = __float_as_uint(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return sign | 0x7fu;
  if (a >= 0x43e00000u) return sign | 0x7eu;
  if (a < 0x3c800000u) return sign | (__float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u);  // steps of 2^-9
  return sign | (a + 0x7ffffu + (a >> 20 & 1u) - (120u << 23)) >> 20;
}
DEV u32 to_e4m3(float a, float b, float c, float d) {
  return one_to_e4m3(a) | one_to_e4m3(b) << 8 | one_to_e4m3(c) << 16 | one_to_e4m3(d) << 24;
}
#else
DEV u32 to_e4m3(float a, float b, float c, float d) { return pack_e4m3(a, b, c, d); }
#endif

// Two e4m3 of a register, bytes 0 and 1 or 2 and 3, as fp16 in units of 1 / kE4m3Unit: a number's bits in fp16's places
// are the number times 2^-8, subnormals too, since only the exponents' biases differ. NaN becomes 480 so.
template <i32 half>
DEV u32 shift_pair_e4m3(u32 x) {
  const u32 y = choose_bytes(x, 0, half == 0 ? 0x1404 : 0x3424);
  return (y & 0x80008000u) | (y >> 1 & 0x3f803f80u);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr bool kE4m3HasNaN = false;
constexpr float kE4m3Unit = 256.0f;
template <i32 half>
DEV u32 f16_of_e4m3(u32 x) {
  return shift_pair_e4m3<half>(x);
}
#else
constexpr bool kE4m3HasNaN = true;
constexpr float kE4m3Unit = 1.0f;
template <i32 half>
DEV u32 f16_of_e4m3(u32 x) {
  return unpack_pair_e4m3<half>(x);
}
#endif

// 1 / a power of two from 2^-108 to 2^119, exactly.
DEV float descale_inverse(float factor) { return __uint_as_float((254u << 23) - __float_as_uint(factor)); }

}  // namespace onepass
