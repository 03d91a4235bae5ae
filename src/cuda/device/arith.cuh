// Arith<float> on the device, and packing to the storage types.
#pragma once
#include "cuda/device/math.cuh"

#include "algebra/online_softmax.hpp"

namespace onepass {

template <>
struct Arith<float> {
  static DEV float of(double x) { return static_cast<float>(x); }
  static DEV float neg_inf() { return kNegInf; }
  static DEV float exp2(float x) { return ex2(x); }
  static DEV float log2(float x) { return lg2(x); }
  static DEV float mul(float a, float b) { return __fmul_rn(a, b); }
  static DEV float mul_add(float a, float b, float c) { return fmaf(a, b, c); }
  static DEV float max(float a, float b) { return fmaxf(a, b); }  // a NaN score reaches l through its weight
  static DEV float inverse(float x) { return rcp(x); }  // 1 ulp; a division is 8 instructions and two branches
  static DEV float if_neg_inf(float x, float then, float otherwise) { return x == kNegInf ? then : otherwise; }
  static DEV float if_within(float x, double bound, float then, float otherwise) {
    return fabsf(x) <= static_cast<float>(bound) ? then : otherwise;
  }
  static DEV float if_zero(float x, float then, float otherwise) { return x == 0.0f ? then : otherwise; }
};

// A factor as an exponent of 2, and back.
DEV float exponent_of(float x) { return lg2(x); }
DEV float factor_of(float exponent) { return ex2(exponent); }

// The four lanes of a quad share the rows of an accumulator fragment.
DEV float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEV float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
DEV bool quad_all(bool x) { return (~__ballot_sync(0xffffffffu, x) >> (threadIdx.x % 32 & 28) & 15) == 0; }

// Storage formats. pack: two 16-bit values in a register, the first in the low half. Packed, kPacked: an operand's
// register and how many values it holds.
struct Bf16 {
  using Raw = u16;
  using Packed = u32;
  static constexpr int kPacked = 2;
  static DEV u32 pack(float lo, float hi) { return pack_bf16(lo, hi); }
  static DEV u32 times_zero_plus(u32 x, u32 y) { return times_zero_plus_bf16(x, y); }
  static DEV u32 max(u32 x, u32 y) { return max_bf16x2(x, y); }
  static DEV u16 round(float x) { return static_cast<u16>(pack(x, 0.0f)); }
  static DEV float unpack(u16 x) { return __int_as_float(static_cast<i32>(x) << 16); }
};
struct F16 {
  using Raw = u16;
  using Packed = u32;
  static constexpr int kPacked = 2;
  static DEV u32 pack(float lo, float hi) { return pack_f16(lo, hi); }
  static DEV u32 times_zero_plus(u32 x, u32 y) { return times_zero_plus_f16(x, y); }
  static DEV u32 max(u32 x, u32 y) { return max_f16x2(x, y); }
  static DEV u16 round(float x) { return static_cast<u16>(pack(x, 0.0f)); }
  static DEV float unpack(u16 x) { return unpack_f16(x); }
};
struct E4m3 {
  using Raw = unsigned char;
  using Packed = u32;
  static constexpr int kPacked = 4;
  static DEV float unpack(Raw x) { return unpack_e4m3(x); }
};
struct F32 {
  using Raw = float;
  using Packed = float;
  static constexpr int kPacked = 1;
  static DEV u32 max(u32 x, u32 y) { return __float_as_uint(fmaxf(__uint_as_float(x), __uint_as_float(y))); }
  static DEV float round(float x) { return x; }
  static DEV float unpack(float x) { return x; }
};

}  // namespace onepass
