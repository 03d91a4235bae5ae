// Reductions over the lanes of a warp and over the warps of a CTA.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/device/shared.cuh"

#include "algebra/nonfinite.hpp"

namespace onepass {

DEV float finite_or_zero(float x) { return is_finite(x) ? x : 0.0f; }

// The same bit in every lane, and ptxas knows: descriptors that depend on it stay in uniform registers. A vote does not
// queue after shared memory as a shuffle does.
DEV u32 warp_any(bool x) { return __any_sync(0xffffffffu, x); }

// The results are in all lanes.
DEV float warp_max(float x) {
#pragma unroll
  for (i32 step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
template <class T>
DEV T warp_sum(T x) {
#pragma unroll
  for (i32 step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The maximum over a CTA of `warps` warps, in all of its threads; x is not negative. `at`: a word of shared memory for
// each warp. There is one barrier, so two calls in a row need two places.
template <i32 warps>
DEV float block_max(float x, u32 at) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) store_word(at + threadIdx.x / 32 * 4, __float_as_int(x));
  __syncthreads();
  if constexpr (warps > 8) return warp_max(load_one(at + threadIdx.x % warps * 4));  // 16 words are too many registers
  static_assert(warps % 4 == 0);
  i32 of_warp[warps];  // numbers that are not negative are ordered as their bits
#pragma unroll
  for (i32 i = 0; i < warps; i += 4) load_four(at + i * 4, of_warp[i], of_warp[i + 1], of_warp[i + 2], of_warp[i + 3]);
#pragma unroll
  for (i32 i = 1; i < warps; ++i) of_warp[0] = max(of_warp[0], of_warp[i]);
  return __int_as_float(of_warp[0]);
}

}  // namespace onepass
