// The two matrix products of a warpgroup: S = Q K^T and O += P V.
#pragma once
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/mma/fragment.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/sm90/forward/tile.cuh"

namespace onepass::sm90 {

constexpr u32 kDepthBytes = 32, kStepsOfBlock = kBlockColumnBytes / kDepthBytes;

struct QueryOperand {  // this warpgroup's 64 rows of Q
  u32 address = 0;
  u32 fragment[config.q_registers ? kQkSteps * 4 : 1];
  DEV void load(u32 q) {
    address = q;
    if constexpr (config.q_registers) {
      const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
      for (u32 kk = 0; kk < kQkSteps; ++kk)
        ldmatrix4(fragment + 4 * kk, swizzled(q + column_offset(kk), row, kk % kStepsOfBlock * 2 + lane / 16));
    }
  }
  // The offset of the block that holds the columns of a step, and of the step within it.
  static DEV u32 column_offset(u32 kk) { return kk / kStepsOfBlock * kBlockM * kBlockColumnBytes; }
  static DEV u32 offset(u32 kk) { return column_offset(kk) + kk % kStepsOfBlock * kDepthBytes; }
};
constexpr u32 kWeightWords = kBlockN / 2 / Element::kPacked;
DEV void issue_scores(Fragment<float, kBlockN / 2>& s, const QueryOperand& q, u32 k) {
#pragma unroll
  for (u32 kk = 0; kk < kQkSteps; ++kk) {
    const u32 offset = kk / kStepsOfBlock * kBlockN * kBlockColumnBytes + kk % kStepsOfBlock * kDepthBytes;
    const u64 b = smem_descriptor(k, 16, offset);
    if constexpr (config.q_registers)
      Wgmma<kBlockN>::registers_kmajor(s, q.fragment + 4 * kk, b, kk != 0);
    else
      Wgmma<kBlockN>::shared(s, smem_descriptor(q.address, 16, QueryOperand::offset(kk)), b, kk != 0);
  }
  wgmma_commit();
}
template <class Product = Wgmma<kOutN>>
DEV void issue_accumulate(Fragment<float, kOutN / 2>& o, const Fragment<u32, kWeightWords>& p, u32 v, i32 accumulate) {
#pragma unroll
  for (u32 kk = 0; kk < kBlockN / kDepth; ++kk) {
    if constexpr (kFp8) {  // both operands K-major, V^T in blocks of one swizzle's width
      constexpr u32 kWidth = transposed_width(config.block_n), kSteps = kWidth / kDepthBytes;
      Product::registers_kmajor(o, p + 4 * kk,
                                narrow_descriptor<kWidth>(v, kk / kSteps * kOutN * kWidth + kk % kSteps * kDepthBytes),
                                kk == 0 ? accumulate : 1);
    } else {
      Product::registers_mnmajor(o, p + 4 * kk,
                                 smem_descriptor(v, kBlockN * kBlockColumnBytes, kk * kDepth * kBlockColumnBytes),
                                 kk == 0 ? accumulate : 1);
    }
  }
  wgmma_commit();
}

}  // namespace onepass::sm90
