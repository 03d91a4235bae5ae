// Arithmetic that is one instruction and that C++ has no word for.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

DEV float ex2(float x) {  // 2^x; MUFU as the next two, 16 a clock and SM
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float min_or_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

DEV float max_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// Four e4m3 in a register, the first in the lowest byte; beyond 448 they stay there.
DEV u32 pack_e4m3(float a, float b, float c, float d) {
  u32 y;
  asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
      "mov.b32 %0, {l, h}; }"
      : "=r"(y)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return y;
}
DEV float unpack_e4m3(unsigned char x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  // Its bits in fp32's places are the number times 2^-120: only the exponents' biases differ.
  const u32 size = x & 0x7fu;
  const float y = size == 0x7fu ? __uint_as_float(0x7fffffffu) : __uint_as_float(size << 20) * 0x1p120f;
  return (x & 0x80u) != 0 ? -y : y;
#else
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(x)));
  float y;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(y) : "r"(pair));
  return y;
#endif
}
// Bytes of two registers, a's are 0 to 3 and b's 4 to 7: those that the digits of `selector` name, the lowest first.
DEV u32 choose_bytes(u32 a, u32 b, u32 selector) {
  u32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}
// Two e4m3 of a register, bytes 0 and 1 or 2 and 3, as fp16 (8.9 and later).
template <i32 half>
DEV u32 unpack_pair_e4m3(u32 x) {
  u32 y;
  if constexpr (half == 0)
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(y) : "r"(x));
  else
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(y) : "r"(x));
  return y;
}

// Two 16-bit values in a register, the first in the low half.
DEV u32 pack_bf16(float lo, float hi) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
DEV u32 pack_f16(float lo, float hi) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
// A 16-bit value of a register, by other instructions than Bf16::unpack and F16::unpack: ptxas, which would see the
// same value in both, then keeps the register instead of two floats.
template <i32 half>
DEV float unpack_bf16_again(u32 x) {
  float y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=f"(y) : "r"(x), "n"(half == 0 ? 0x1044 : 0x3244));
  return y;
}
template <i32 half>
DEV float unpack_f16_again(u32 x) {
  float y;
  asm("{ .reg .b32 r; .reg .b16 h; prmt.b32 r, %1, 0, %2; cvt.u16.u32 h, r; cvt.f32.f16 %0, h; }"
      : "=f"(y)
      : "r"(x), "n"(half == 0 ? 0x4410 : 0x4432));
  return y;
}
// The larger of each half; a NaN gives way to a number.
DEV u32 max_bf16x2(u32 x, u32 y) {
  u32 z;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
DEV u32 max_f16x2(u32 x, u32 y) {
  u32 z;
  asm("max.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
DEV float unpack_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
// For both values: y if x is finite, else NaN.
DEV u32 times_zero_plus_bf16(u32 x, u32 y) {
  u32 z;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(0u), "r"(y));
  return z;
}
DEV u32 times_zero_plus_f16(u32 x, u32 y) {
  u32 z;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(0u), "r"(y));
  return z;
}

}  // namespace onepass
