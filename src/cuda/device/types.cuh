// Words of the device code. Header-free: NVRTC gets no include path.
#pragma once
#include "core/portable.hpp"

#define DEV __device__ __forceinline__

namespace onepass {

using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

constexpr float kNegInf = __builtin_bit_cast(float, 0xff800000u);

DEV u32 warp_uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }  // the same value in every lane, known to ptxas

}  // namespace onepass
