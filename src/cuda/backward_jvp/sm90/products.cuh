// The products of a warpgroup on a block of streamed tokens. Each of a group adds to registers that have one shape:
// ptxas would make every product wait for the one before it otherwise.
#pragma once
#include "cuda/backward_jvp/sm90/tile.cuh"

namespace onepass::cuda::backward_jvp::sm90 {

constexpr u32 kDepth = 16, kDepthBytes = 32, kStepsOfBlock = kBlockColumnBytes / kDepthBytes;

// s (+)= A B^T: 64 held rows, a block of streamed ones, `depth` columns of both.
template <bool kKeys, i32 depth, i32 N>
DEV void multiply(Fragment<float, N>& s, u32 held, u32 streamed, bool accumulate) {
#pragma unroll
  for (u32 kk = 0; kk < depth / kDepth; ++kk) {
    const u32 block = kk / kStepsOfBlock, offset = kk % kStepsOfBlock * kDepthBytes;
    Wgmma<2 * N>::shared(s, smem_descriptor(held, 16, block * kHeldBlockBytes + offset),
                         smem_descriptor(streamed, 16, block * Pass<kKeys>::kBlockBytes + offset),
                         accumulate || kk != 0);
  }
}
// s = A B^T, ds = tA B^T + A tB^T. Tangents lie `blocks` blocks of columns behind their tensors; kMovesA, kMovesB:
// there is a tA, a tB.
template <bool kKeys, i32 depth, u32 blocks, bool kMovesA, bool kMovesB, i32 N>
DEV void multiply_both(Fragment<float, N>& s, Fragment<float, N>& ds, u32 held, u32 streamed) {
  multiply<kKeys, depth>(s, held, streamed, false);
  if constexpr (kMovesA) multiply<kKeys, depth>(ds, held + blocks * kHeldBlockBytes, streamed, false);
  if constexpr (kMovesB) multiply<kKeys, depth>(ds, held, streamed + blocks * Pass<kKeys>::kBlockBytes, kMovesA);
}
// sum += W B: `columns` columns of a streamed block, read transposed.
template <bool kKeys, i32 columns, i32 N>
DEV void accumulate(Fragment<float, columns / 2>& sum, const Operand<Element, N>& w, u32 block) {
#pragma unroll
  for (u32 kk = 0; kk < 2 * N / kDepth; ++kk)
    Wgmma<columns>::registers_mnmajor(
        sum, w + 4 * kk, smem_descriptor(block, Pass<kKeys>::kBlockBytes, kk * kDepth * kBlockColumnBytes), 1);
}

}  // namespace onepass::cuda::backward_jvp::sm90
