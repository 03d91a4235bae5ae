// TMA: boxes of 4-D tensors between global and shared memory.
#pragma once
#include "cuda/device/barrier.cuh"

namespace onepass {

struct alignas(64) TensorMap {  // the driver's CUtensorMap
  u64 opaque[16];
};

constexpr u64 kEvictFirst = 0x12F0000000000000ull, kEvictLast = 0x14F0000000000000ull;  // createpolicy's encodings

DEV void tma_prefetch(const TensorMap* m) { asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory"); }

// c0 is the innermost coordinate. Elements outside the tensor arrive as zeros and count as bytes all the same.
DEV void tma_load(u32 to, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3, u64 hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(hint)
      : "memory");
}
// Into L2 only.
DEV void tma_prefetch(const TensorMap* m, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(m), "r"(c0), "r"(c1), "r"(c2),
               "r"(c3)
               : "memory");
}
// A load without a hint for L2.
DEV void tma_load(u32 to, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// Elements outside the tensor are not written.
DEV void tma_store(const TensorMap* m, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(m),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
// The same for fp32, added to what stands there.
DEV void tma_add(const TensorMap* m, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(m),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// Rows of bytes without a map: 16-byte aligned, a multiple of 16 long.
DEV void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar)
               : "memory");
}
// Adds shared memory to global memory, fp32 by fp32.
DEV void bulk_add(float* to, u32 from, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
DEV void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEV void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEV void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }  // written, not only read

// 128-byte swizzle: 16-byte chunk c of 128-byte row r lies at chunk c ^ (r % 8). TMA writes it so, wgmma reads it so.
DEV u32 swizzled(u32 block, u32 row, u32 chunk) { return block + row * 128 + (chunk ^ (row % 8)) * 16; }

// The same with a swizzle of `width` bytes, of rows that long.
template <u32 width>
DEV u32 narrow_swizzled(u32 block, u32 row, u32 chunk) {
  return block + row * width + (chunk ^ (width == 128 ? row % 8 : width == 64 ? row / 2 % 4 : row / 4 % 2)) * 16;
}

DEV void stmatrix4(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// Each 8 x 8 matrix lands transposed: lane l addresses column l % 8 of matrix l / 8.
DEV void stmatrix4_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

}  // namespace onepass
