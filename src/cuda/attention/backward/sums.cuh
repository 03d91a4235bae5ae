// The gradients of sinks and slopes: parts of CTAs added up, one warp for each head (and batch entry), in
// an order of its own that is always the same.
#pragma once
#include "cuda/attention/backward/tile.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass {

DEV float sum_of(const float* parts, i32 first, i32 last) {  // by one warp
  float sum = 0.0f;
  for (i32 i = first + static_cast<i32>(threadIdx.x % 32); i < last; i += 32) sum += parts[i];
  return warp_sum(sum);
}

}  // namespace onepass

// A warp is a block. Grid: heads x the batch entries of dslopes, at least one.
extern "C" __global__ void __launch_bounds__(32)
    attention_backward_sums(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  const i32 head = static_cast<i32>(blockIdx.x) % p.heads, batch = static_cast<i32>(blockIdx.x) / p.heads;
  if (backward_features.dsinks && batch == 0) {
    const float sum = sum_of(p.sink_parts + static_cast<i64>(head) * p.q_blocks, 0, p.q_blocks);
    if (threadIdx.x == 0) p.dsinks[head * p.dsink_stride] = sum;
  }
  if constexpr (backward_features.dslopes) {
    constexpr i32 kParts = backward_shape.key_warps;
    const float* const parts = p.slope_parts + static_cast<i64>(head) * p.k_blocks * kParts;
    const bool one = p.slope_batch == 1;  // slopes of all batch entries
    const auto first = [&](i32 b) { return first_block<kBlockK>(p.cu_k, p.seq_k, b); };
    float sum = 0.0f;
    for (i32 b = one ? 0 : batch; b < (one ? p.batch : batch + 1); ++b) {
      const i32 keys = features.packed ? p.cu_k[b + 1] - p.cu_k[b] : p.seq_k;
      sum += sum_of(parts, first(b) * kParts, (first(b) + ceil_div(keys, kBlockK)) * kParts);
    }
    if (threadIdx.x == 0) p.dslopes[batch * p.dslope_stride[0] + head * p.dslope_stride[1]] = sum;
  }
}
