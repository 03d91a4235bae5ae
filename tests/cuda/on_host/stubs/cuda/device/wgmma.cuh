// A stub for src/cuda/device/wgmma.cuh and for the instructions of host/wgmma_source.cpp. A product reads its
// operands and leaves its sums when the warpgroup waits for it.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/mma/elements.cuh"

namespace onepass {

DEV u64 smem_descriptor(u32 address, u32 lbo_bytes, u32 offset) {
  const u32 lo = (address >> 4 | lbo_bytes >> 4 << 16) + (offset >> 4), hi = 1u << 30 | 1024 >> 4;
  return lo | static_cast<u64>(hi) << 32;
}
template <u32 width>
DEV u64 narrow_descriptor(u32 address, u32 offset) {
  const u32 hi = (width == 128 ? 1u : width == 64 ? 2u : 3u) << 30 | 8 * width >> 4;
  return ((address >> 4 | 1u << 16) + (offset >> 4)) | static_cast<u64>(hi) << 32;
}
DEV void wgmma_fence() {}
DEV void wgmma_commit() {
  auto& own = warps::warpgroup().own();
  own.groups.push_back(std::move(own.issued));
  own.issued.clear();
}
template <int N>
DEV void wgmma_wait() {
  warps::warpgroup().finish(N);
}
template <class T, int N>
DEV void fence_operand(T (&)[N]) {}

constexpr u32 kProductBytes = sizeof(Element::Raw), kDepthOfProduct = 32 / kProductBytes;

// A matrix in shared memory, by its descriptor.
struct SharedMatrix {
  u32 start, lbo, sbo, width;
  explicit SharedMatrix(u64 d)
      : start((d & 0x3fff) << 4), lbo((d >> 16 & 0x3fff) << 4), sbo((d >> 32 & 0x3fff) << 4), width(256u >> (d >> 62)) {
    if (d >> 62 == 0) warps::fail("a descriptor without a swizzle");
    if (kProductBytes == 2 && width != 128) warps::fail("a descriptor without the 128-byte swizzle");
  }
  float at(u32 address) const {
    Element::Raw x;
    address ^= (address >> 7 & (width / 16 - 1)) << 4;
    std::memcpy(&x, shared_at<void>(address | warps::rank << warps::kRankBit, kProductBytes), kProductBytes);
    return Element::unpack(x);
  }
  // Rows of the depth's elements; or columns: the depth runs down.
  float kmajor(u32 row, u32 k) const { return at(start + row / 8 * sbo + row % 8 * width + kProductBytes * k); }
  float mnmajor(u32 column, u32 k) const {
    return at(start + column / 64 * lbo + column % 64 * 2 + k / 8 * sbo + k % 8 * 128);
  }
};

template <int N>
struct Wgmma {
  static void shared(float (&d)[N / 2], u64 a, u64 b, i32 accumulate) {
    issue({run<false>, d, nullptr, a, b, accumulate});
  }
  static void shared_mnmajor(float (&d)[N / 2], u64 a, u64 b, i32 accumulate) {
    issue({run<true>, d, nullptr, a, b, accumulate});
  }
  static void registers_kmajor(float (&d)[N / 2], const u32* a, u64 b, i32 accumulate) {
    issue({run<false>, d, a, 0, b, accumulate});
  }
  static void registers_mnmajor(float (&d)[N / 2], const u32* a, u64 b, i32 accumulate) {
    issue({run<true>, d, a, 0, b, accumulate});
  }

 private:
  static void issue(warps::Product p) {
    p.accumulate = p.accumulate != 0;
    warps::warpgroup().own().issued.push_back(p);
  }
  template <bool kDepthRunsDown>
  static void run(const std::array<const warps::Product*, 128>& lanes) {
    const warps::Product& first = *lanes[0];
    const SharedMatrix b_matrix(first.b_descriptor);
    constexpr u32 kDepth = kDepthOfProduct, kOfWord = 4 / kProductBytes, kHalf = kDepth / 2;
    static float a[64][kDepth], b[N][kDepth];
    for (u32 n = 0; n < N; ++n)
      for (u32 k = 0; k < kDepth; ++k) b[n][k] = kDepthRunsDown ? b_matrix.mnmajor(n, k) : b_matrix.kmajor(n, k);
    for (u32 m = 0; m < 64; ++m) {
      for (u32 k = 0; k < kDepth; ++k) {
        if (first.a_fragment) {
          const u32* const fragment = lanes[m / 16 * 32 + m % 8 * 4 + k % kHalf / kOfWord]->a_fragment;
          a[m][k] = Element::unpack(
              static_cast<Element::Raw>(fragment[m / 8 % 2 + k / kHalf * 2] >> k % kOfWord * 8 * kProductBytes));
        } else {
          a[m][k] = SharedMatrix(first.a_descriptor).kmajor(m, k);
        }
      }
    }
    for (u32 m = 0; m < 64; ++m) {
      for (u32 n = 0; n < N; ++n) {
        float& d = lanes[m / 16 * 32 + m % 8 * 4 + n % 8 / 2]->d[n / 8 * 4 + m / 8 % 2 * 2 + n % 2];
        std::array<double, kDepth + 1> terms{first.accumulate ? d : 0.0f};
        for (u32 k = 0; k < kDepth; ++k) terms[k + 1] = static_cast<double>(a[m][k]) * b[n][k];
        d = kProductBytes == 1 ? truncated_sum_e4m3(terms) : truncated_sum(terms);
      }
    }
  }
};

}  // namespace onepass
