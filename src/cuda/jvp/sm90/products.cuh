// The products of a warpgroup on a block of keys. Each of a group adds to registers that have one shape: ptxas would
// make every product wait for the one before it if [S dS] were one product with [K tK].
//
//   S = Q K^T,    dS = tQ K^T + Q tK^T
//   O += P V,     tO += X V + P tV       with X = P dS
#pragma once
#include "cuda/jvp/sm90/tile.cuh"

namespace onepass::cuda::jvp::sm90 {

constexpr u32 kDepth = 16, kDepthBytes = 32, kStepsOfBlock = kBlockColumnBytes / kDepthBytes;
constexpr u32 kQkSteps = round_up(features.dim_qk, 16) / 16;
constexpr i32 kScores = kKeys / 2, kOutSums = kOutN / 2;  // a lane's elements
using Weights = Operand<Element, kScores>;

// s (+)= A B^T: 64 rows of Q or of its tangent, a block of K or of its tangent.
DEV void multiply(Fragment<float, kScores>& s, u32 rows, u32 keys, bool accumulate) {
#pragma unroll
  for (u32 kk = 0; kk < kQkSteps; ++kk) {
    const u32 block = kk / kStepsOfBlock, offset = kk % kStepsOfBlock * kDepthBytes;
    Wgmma<kKeys>::shared(s, smem_descriptor(rows, 16, block * kRowBlockBytes + offset),
                         smem_descriptor(keys, 16, block * kKeyBlockBytes + offset), accumulate || kk != 0);
  }
}
// q: this warpgroup's rows. k: a stage.
DEV void issue_scores(Fragment<float, kScores>& s, Fragment<float, kScores>& ds, u32 q, u32 k) {
  constexpr u32 kTangentOfQ = kQkBlocks * kRowBlockBytes, kTangentOfK = kQkBlocks * kKeyBlockBytes;
  multiply(s, q, k, false);
  multiply(ds, q + kTangentOfQ, k, false);
  multiply(ds, q, k + kTangentOfK, true);
  wgmma_commit();
}
DEV void accumulate(Fragment<float, kOutSums>& o, const Weights& w, u32 values) {
#pragma unroll
  for (u32 kk = 0; kk < kKeys / kDepth; ++kk)
    Wgmma<kOutN>::registers_mnmajor(o, w + 4 * kk,
                                    smem_descriptor(values, kKeyBlockBytes, kk * kDepth * kBlockColumnBytes), 1);
}
// v: this warpgroup's columns of a stage.
DEV void issue_sums(Fragment<float, kOutSums>& o, Fragment<float, kOutSums>& t, const Weights& w, const Weights& x,
                    u32 v) {
  accumulate(o, w, v);
  accumulate(t, x, v);
  accumulate(t, w, v + kVBlocks * kKeyBlockBytes);
  wgmma_commit();
}

}  // namespace onepass::cuda::jvp::sm90
