// wgmma (sm_90a). The instructions themselves, Wgmma<N>, come from the host as text for exactly the widths a kernel
// uses (host/wgmma_source.cpp): their operand lists are N / 2 registers long and say nothing.
#pragma once
#include "cuda/device/barrier.cuh"

namespace onepass {

template <int N>
struct Wgmma;

// Shared-memory matrix descriptor, 128-byte swizzle (bits 62-63 = 1). A tile is stored as [columns / 64][rows][64]
// 16-bit elements; each 8 rows x 128 bytes is a swizzle atom, so blocks start on 1024-byte boundaries.
//   K-major (Q, K: the contraction runs along the row): SBO = 1024 (next 8 rows), LBO unused; +16 of the contraction is
//     +32 bytes, +64 is the next block.
//   MN-major (V: the contraction runs down the rows): SBO = 1024, LBO = bytes between 64-column blocks; +16 is +2048
//   bytes.
DEV u64 smem_descriptor(u32 address, u32 lbo_bytes, u32 offset) {  // only the low word varies: 32-bit arithmetic
  const u32 lo = (address >> 4 | lbo_bytes >> 4 << 16) + (offset >> 4), hi = 1u << 30 | 1024 >> 4;
  u64 d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(lo), "r"(hi));
  return d;
}
// A K-major tile [blocks][rows][width bytes] with a swizzle of its width, 32, 64 or 128 bytes (bits 62-63 = 3, 2, 1).
template <u32 width>
DEV u64 narrow_descriptor(u32 address, u32 offset) {
  constexpr u32 hi = (width == 128 ? 1u : width == 64 ? 2u : 3u) << 30 | 8 * width >> 4;
  const u32 lo = (address >> 4 | 1u << 16) + (offset >> 4);
  u64 d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(lo), "r"(hi));
  return d;
}
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Ties registers to a point in program order: without it the compiler may read an accumulator before the wait.
template <int N>
DEV void fence_operand(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int N>
DEV void fence_operand(u32 (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

}  // namespace onepass
