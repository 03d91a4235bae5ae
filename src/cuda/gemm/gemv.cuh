// y = x w^T + bias for up to four rows x: a warp takes a row of w, 16 bytes a lane, eight of them under way at a time.
// x is read through L1, where it stays. Nothing is shared and nothing waits: one row of x costs the fewest
// instructions here, and sums have one order.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/order.cuh"
#include "cuda/device/reduce.cuh"

#include "cuda/gemm/gemv_params.hpp"

namespace onepass {

constexpr GemvConfig kV = gemv_config;
using Input = ElementOf<kV.input>::Format;
using Output = ElementOf<kV.output>::Format;
constexpr i32 kEach = 16 / static_cast<i32>(sizeof(Input::Raw)), kUnderWay = 8;  // numbers of 16 bytes; of those

struct alignas(16) Sixteen {
  Input::Raw x[kEach];
};
DEV Sixteen read_once(const Input::Raw* from) {
  union {
    u32 word[4];
    Sixteen all;
  } r;
  asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.word[0]), "=r"(r.word[1]), "=r"(r.word[2]), "=r"(r.word[3])
               : "l"(from));
  return r.all;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(32 * onepass::kGemvWarps, 3)
    gemv(const __grid_constant__ onepass::GemvParams p) {
  using namespace onepass;
  let_next_kernel_start();
  const i32 lane = static_cast<i32>(threadIdx.x % 32);
  const i32 n = static_cast<i32>(blockIdx.x) * kGemvWarps + static_cast<i32>(threadIdx.x / 32);
  if (n >= p.n) return;
  const auto* const w = static_cast<const Input::Raw*>(p.w) + n * p.w_stride;
  const auto* const x = static_cast<const Input::Raw*>(p.x);
  wait_for_kernel_before();
  float sum[kV.rows] = {};
  for (i32 k = kEach * lane; k < p.k; k += 32 * kEach * kUnderWay) {
    Sixteen weights[kUnderWay];
#pragma unroll
    for (i32 i = 0; i < kUnderWay; ++i)
      if (k + 32 * kEach * i < p.k) weights[i] = read_once(w + k + 32 * kEach * i);
#pragma unroll
    for (i32 i = 0; i < kUnderWay; ++i) {
      const i32 at = k + 32 * kEach * i;
      if (at >= p.k) continue;
#pragma unroll
      for (i32 m = 0; m < kV.rows; ++m) {
        const Sixteen numbers = *reinterpret_cast<const Sixteen*>(x + m * p.x_stride + at);
#pragma unroll
        for (i32 j = 0; j < kEach; ++j)
          sum[m] = fmaf(Input::unpack(numbers.x[j]), Input::unpack(weights[i].x[j]), sum[m]);
      }
    }
  }
  float mine = 0.0f;  // the sum of row `lane`
#pragma unroll
  for (i32 m = 0; m < kV.rows; ++m) {
    const float all = warp_sum(sum[m]);
    if (lane == m) mine = all;
  }
  if (lane >= kV.rows) return;
  if (kV.bias) mine += Input::unpack(static_cast<const Input::Raw*>(p.bias)[n * p.bias_stride]);
  static_cast<Output::Raw*>(p.y)[lane * p.y_stride[0] + n * p.y_stride[1]] = Output::round(mine);
}
