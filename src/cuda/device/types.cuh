// Words of the device code. Header-free: NVRTC gets no include path.
#pragma once
#include "algebra/portable.hpp"

#define DEV __device__ __forceinline__

namespace onepass {

using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

constexpr float kNegInf = __builtin_bit_cast(float, 0xff800000u);

DEV u32 warp_uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }  // the same value in every lane, known to ptxas
// What follows from the result is computed after this point, not ahead of a loop that then has a register less.
template <class Int>
DEV Int opaque(Int x) {
  asm volatile("" : "+r"(x));
  return x;
}
template <class T>
DEV T* opaque(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}
DEV u32 opaque_thread() {  // threadIdx.x, read again
  u32 x = threadIdx.x;
#ifdef __CUDA_ARCH__  // tests run these texts on the host as well
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
#endif
  return x;
}
DEV u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

}  // namespace onepass
