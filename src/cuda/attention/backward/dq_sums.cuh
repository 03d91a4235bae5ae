// Adding to sums in global memory, such as those of dQ, to which CTAs add in any order.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

// A lane adds four neighbouring floats by one instruction (sm_90). Earlier devices add floats that are 128 bytes apart,
// so that an instruction of the warp fills a line.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kAddsFour = false;
#else
constexpr bool kAddsFour = true;
#endif
// A warp adds to 512 bytes of sums; number i of lane l goes to lane_sum(l, i).
constexpr DEV i32 lane_sum(i32 lane, i32 i) { return kAddsFour ? 4 * lane + i : 32 * i + lane; }
DEV void add_sums(float* warps, const float* x) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(warps + 4 * lane), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (i32 i = 0; i < 4; ++i)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(warps + lane_sum(lane, i)), "f"(x[i]) : "memory");
#endif
}

}  // namespace onepass
