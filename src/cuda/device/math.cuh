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
DEV float unpack_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
// Of both values: y while x is finite, else NaN.
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
