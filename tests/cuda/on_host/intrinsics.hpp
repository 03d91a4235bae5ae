// CUDA's words for the device sources, on top of warps.hpp: intrinsics, keywords, and PTX of files without a stub,
// which ends the test. Include before the device sources and after every standard header.
#pragma once
#include "on_host/warps.hpp"

// Masks are always whole warps.
inline unsigned __ballot_sync(unsigned, bool own) {
  unsigned bits = 0;
  const auto all = warps::share<unsigned>(own);
  for (unsigned i = 0; i < 32; ++i) bits |= all[i] << i;
  return bits;
}
inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }
inline bool __all_sync(unsigned mask, bool own) { return __ballot_sync(mask, !own) == 0; }
inline float __shfl_sync(unsigned, float own, int from) { return warps::share(own)[static_cast<unsigned>(from) % 32]; }
template <class T>
T __shfl_sync(unsigned, T own, int from) {
  return static_cast<T>(warps::share<std::uint64_t>(static_cast<std::uint64_t>(own))[static_cast<unsigned>(from) % 32]);
}
template <class T>
T __shfl_xor_sync(unsigned, T own, int with) {
  return warps::share(own)[threadIdx.x % 32 ^ static_cast<unsigned>(with)];
}
template <class T>
T __shfl_up_sync(unsigned, T own, unsigned by) {
  const unsigned lane = threadIdx.x % 32;
  return warps::share(own)[lane >= by ? lane - by : lane];
}
inline void __syncthreads() { warps::block->share(threadIdx.x, 0); }
inline int __syncthreads_or(int own) {
  const auto all = warps::block->share(threadIdx.x, own);
  return std::any_of(all.begin(), all.end(), [](int x) { return x != 0; });
}
inline int __syncthreads_and(int own) {
  const auto all = warps::block->share(threadIdx.x, own);
  return std::all_of(all.begin(), all.end(), [](int x) { return x != 0; });
}
inline void __syncwarp() { warps::share(0); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline unsigned __brev(unsigned x) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (x >> i & 1u) << (31 - i);
  return out;
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline float __fmul_rz(float a, float b) {
  const double exact = double{a} * double{b};
  const float x = static_cast<float>(exact);
  return std::abs(double{x}) > std::abs(exact) ? std::nextafter(x, 0.0f) : x;
}
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline unsigned atomicAdd(unsigned* at, unsigned by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }
inline unsigned atomicOr(unsigned* at, unsigned by) { return __atomic_fetch_or(at, by, __ATOMIC_SEQ_CST); }
inline float atomicAdd(float* at, float by) {
  const float before = *at;
  *at += by;
  return before;
}
inline std::size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<std::size_t>(static_cast<const unsigned char*>(p) - smem) | warps::rank << warps::kRankBit;
}
using std::max, std::min;

#define __device__
#define __host__
#define __global__
#define __shared__
#define __align__(bytes)
#define __forceinline__ inline
#define __noinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#ifdef __clang__
#pragma clang diagnostic ignored "-Wkeyword-macro"  // asm and volatile
#endif
#define asm(...) ::warps::instruction(#__VA_ARGS__)
#define volatile(...) \
  ("");               \
  ::warps::instruction(#__VA_ARGS__)  // of asm volatile(...)
