// Factors of e4m3 tensors: fp32 [batch, heads, blocks of 128 rows], of which any dimension may have stride 0.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/device/reduce.cuh"

#include "cuda/attention/forward.hpp"

namespace onepass {

constexpr i32 kDescaleRows = 128;

DEV float descale_at(const float* factors, const long long (&stride)[3], i32 batch, i32 head, i32 block) {
  return factors ? factors[batch * stride[0] + head * stride[1] + block * stride[2]] : 1.0f;
}
DEV float q_factor(const ForwardParams& p, i32 batch, i32 head, i32 row) {
  return descale_at(p.q_descale, p.q_descale_stride, batch, head, row / kDescaleRows);
}
DEV float k_factor(const ForwardParams& p, i32 batch, i32 head, i32 block) {
  return descale_at(p.k_descale, p.k_descale_stride, batch, head, block);
}
DEV float v_factor(const ForwardParams& p, i32 batch, i32 head, i32 block) {
  return descale_at(p.v_descale, p.v_descale_stride, batch, head, block);
}
// The largest scale of V in the first `blocks` blocks of a head; one whole warp computes it.
DEV float largest_v_factor(const ForwardParams& p, i32 batch, i32 head, i32 blocks) {
  float largest = 0.0f;
  for (i32 block = threadIdx.x % 32; block < blocks; block += 32)
    largest = fmaxf(largest, v_factor(p, batch, head, block));
  return warp_max(largest);
}

}  // namespace onepass
