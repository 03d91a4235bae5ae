// Stands in for src/cuda/device/mma.cuh on the host: the 32 lanes of a warp are threads that meet at each mma.sync.
#pragma once
#include <barrier>
#include <bit>
#include <cmath>
#include <cstring>

#define DEV inline

namespace onepass {

using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;

struct EmulatedWarp {
  unsigned char* shared = nullptr;
  std::barrier<> meeting{32};
  float a[16][8], b[8][8];
};
inline EmulatedWarp emulated_warp;
inline thread_local u32 emulated_thread;

DEV u32 thread_here() { return emulated_thread; }
struct EmulatedIndex {
  u32 x = 0;
};
inline thread_local EmulatedIndex threadIdx;  // named by what is not called
DEV u32 __float_as_uint(float x) { return std::bit_cast<u32>(x); }
DEV float __uint_as_float(u32 x) { return std::bit_cast<float>(x); }
DEV void load_pair(float (&x)[2], u32 from) { std::memcpy(x, emulated_warp.shared + from, 8); }
DEV float load_one(u32 from) {
  float x;
  std::memcpy(&x, emulated_warp.shared + from, 4);
  return x;
}

// The tensor core looks at 19 bits of an operand and cuts the sum of the products and the accumulator to fp32.
DEV float seen_as_tf32(u32 x) { return std::bit_cast<float>(x & 0xffffe000u); }
DEV float cut(double x) {
  const float nearest = static_cast<float>(x);
  return std::abs(static_cast<double>(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}
DEV void mma_1688(float* d, const u32* a, u32 b0, u32 b1) {
  EmulatedWarp& w = emulated_warp;
  const u32 g = emulated_thread % 32 / 4, t = emulated_thread % 4;
  for (u32 i = 0; i < 4; ++i) w.a[g + i % 2 * 8][t + i / 2 * 4] = seen_as_tf32(a[i]);
  w.b[t][g] = seen_as_tf32(b0);
  w.b[t + 4][g] = seen_as_tf32(b1);
  w.meeting.arrive_and_wait();
  for (u32 i = 0; i < 4; ++i) {
    double sum = d[i];
    for (u32 k = 0; k < 8; ++k) sum += static_cast<double>(w.a[g + i / 2 * 8][k]) * w.b[k][2 * t + i % 2];
    d[i] = cut(sum);
  }
  w.meeting.arrive_and_wait();
}

}  // namespace onepass
