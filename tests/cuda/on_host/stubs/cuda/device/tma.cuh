// A stub for src/cuda/device/tma.cuh: tensor maps hold a warps::TensorBox.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/mma/mma.cuh"

namespace onepass {

struct alignas(64) TensorMap {
  u64 opaque[16];
  warps::TensorBox box() const {
    warps::TensorBox b;
    static_assert(sizeof b <= sizeof opaque);
    std::memcpy(&b, opaque, sizeof b);
    return b;
  }
};

constexpr u64 kEvictFirst = 0, kEvictLast = 0;
DEV void tma_prefetch(const TensorMap*) {}
DEV void tma_prefetch(const TensorMap*, i32, i32, i32, i32) {}

DEV void tma_load(u32 to, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3, u64) {
  const auto land = [box = m->box(), to, bar, c0, c1, c2, c3] {
    box.walk(to, {c0, c1, c2, c3}, [](const unsigned char* piece, std::size_t bytes, unsigned char* at) {
      std::memset(at, 0, 16);
      if (bytes > 0) std::memcpy(at, piece, bytes);
    });
    warps::MemoryBarrier& b = warps::hopper().memory_barrier(bar);
    b.bytes -= box.rows * 128;
    b.settle();
  };
  if (warps::copies_are_early)
    land();
  else
    warps::background.push_back(land);
}
DEV void tma_load(u32 to, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3) {
  tma_load(to, m, bar, c0, c1, c2, c3, kEvictLast);
}
DEV void tma_store(const TensorMap* m, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  const auto land = [box = m->box(), from, c0, c1, c2, c3] {
    box.walk(from, {c0, c1, c2, c3}, [](unsigned char* piece, std::size_t bytes, const unsigned char* at) {
      if (bytes > 0) std::memcpy(piece, at, bytes);
    });
  };
  if (warps::copies_are_early)
    land();
  else
    warps::running->begun.push_back(land);
}
DEV void tma_add(const TensorMap* m, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  const auto land = [box = m->box(), from, c0, c1, c2, c3] {
    box.walk(from, {c0, c1, c2, c3}, [](unsigned char* piece, std::size_t bytes, const unsigned char* at) {
      for (std::size_t i = 0; i < bytes; i += 4) {
        float sum, x;
        std::memcpy(&sum, piece + i, 4);
        std::memcpy(&x, at + i, 4);
        sum += x;
        std::memcpy(piece + i, &sum, 4);
      }
    });
  };
  if (warps::copies_are_early)
    land();
  else
    warps::running->begun.push_back(land);
}
DEV void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<u64>(from) % 16 != 0)
    warps::fail("a bulk copy is not aligned");
  const auto land = [=] {
    std::memcpy(shared_at<char>(to, 16), from, bytes);
    warps::MemoryBarrier& b = warps::hopper().memory_barrier(bar);
    b.bytes -= bytes;
    b.settle();
  };
  if (warps::copies_are_early)
    land();
  else
    warps::background.push_back(land);
}
DEV void bulk_add(float* to, u32 from, u32 bytes) {
  if (from % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<u64>(to) % 16 != 0)
    warps::fail("a bulk sum is not aligned");
  const auto land = [=] {
    for (u32 i = 0; i < bytes / 4; ++i) to[i] += shared_word<float>(from + 4 * i);
  };
  if (warps::copies_are_early)
    land();
  else
    warps::running->begun.push_back(land);
}
DEV void tma_store_commit() {
  warps::running->groups.push_back(std::move(warps::running->begun));
  warps::running->begun.clear();
}
DEV void tma_store_wait() {
  auto& groups = warps::running->groups;
  for (; !groups.empty(); groups.pop_front()) {
    for (const auto& land : groups.front()) land();
  }
}
DEV void tma_store_wait_read() { tma_store_wait(); }

DEV u32 swizzled(u32 block, u32 row, u32 chunk) { return block + row * 128 + (chunk ^ (row % 8)) * 16; }

template <u32 width>
DEV u32 narrow_swizzled(u32 block, u32 row, u32 chunk) {
  return block + row * width + (chunk ^ (width == 128 ? row % 8 : width == 64 ? row / 2 % 4 : row / 4 % 2)) * 16;
}

DEV void stmatrix4(u32 to, u32 a, u32 b, u32 c, u32 d) {
  const auto rows = warps::share(to);
  const u32 own[4] = {a, b, c, d}, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 i = 0; i < 4; ++i) std::memcpy(shared_at<char>(rows[8 * i + g], 16) + 4 * t, &own[i], 4);
}
DEV void stmatrix4_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
  const auto rows = warps::share(to);
  const u32 own[4] = {a, b, c, d}, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 i = 0; i < 4; ++i) {
    for (u32 e = 0; e < 2; ++e) {
      const u16 element = static_cast<u16>(own[i] >> 16 * e);
      std::memcpy(shared_at<char>(rows[8 * i + 2 * t + e], 16) + 2 * g, &element, 2);
    }
  }
}

}  // namespace onepass
