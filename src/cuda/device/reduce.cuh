// Sums in global memory that blocks of threads add to, and turns for those that must be added in one order.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

// Four neighbouring floats by one instruction (sm_90), or floats 128 bytes apart, of a warp's lanes a line each.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kAddsFour = false;
#else
constexpr bool kAddsFour = true;
#endif
// To the 512 bytes of a warp's sums; what lane l adds stands at lane_sum(l, i).
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

// One thread waits until *at is `turn`: then all that was written before pass_turn(at, turn) is there.
DEV void wait_for_turn(const unsigned* at, u32 turn) {
  u32 now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now != turn);
}
DEV void pass_turn(unsigned* at, u32 turn) {  // by one thread, behind memory_fence and a barrier of those that wrote
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(turn) : "memory");
}
// Returns the old value. Acquire-release: earlier writes that this thread has seen are visible to later adders and,
// after a barrier, to their CTA.
DEV u32 add_in_order(u32* at, u32 x) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(x) : "memory");
  return before;
}
DEV void memory_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace onepass
