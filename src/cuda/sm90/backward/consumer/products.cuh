// The five matrix products of 64 keys.
#pragma once
#include "cuda/device/wgmma.cuh"
#include "cuda/mma/fragment.cuh"

#include "cuda/sm90/backward/tile.cuh"

namespace onepass::sm90 {

// One instruction contracts 16 columns, rows or keys.
constexpr u32 kDepth = 16, kDepthBytes = kDepth * 2, kStepsOfBlock = kBlockColumns / kDepth;

// The offset of a step along the columns of a tile of `rows` rows.
DEV constexpr u32 step_offset(u32 kk, u32 rows) {
  return kk / kStepsOfBlock * rows * kBlockColumnBytes + kk % kStepsOfBlock * kDepthBytes;
}

// A matrix's address as a descriptor has it. In a cluster, bits beyond it say which block's memory it is.
DEV u32 in_descriptor(u32 address) { return config.paired ? address & 0x3ffff : address; }

// S^T = K Q^T and dP^T = V dO^T: `keys` and `rows` are tiles, contracted along their `dim` columns.
template <u32 dim>
DEV void issue_keys_by_rows(Fragment<float, kBlockM / 2>& d, u32 keys, u32 rows) {
#pragma unroll
  for (u32 kk = 0; kk < dim / kDepth; ++kk)
    Wgmma<kBlockM>::shared(d, smem_descriptor(in_descriptor(keys), 16, step_offset(kk, kBlockN)),
                           smem_descriptor(in_descriptor(rows), 16, step_offset(kk, kBlockM)), kk != 0);
  wgmma_commit();
}
// The same, some steps' keys in registers: half the traffic of shared memory.
template <u32 dim, int N>
DEV void issue_keys_by_rows(Fragment<float, kBlockM / 2>& d, const u32 (&held)[N], u32 keys, u32 rows) {
#pragma unroll
  for (u32 kk = 0; kk < dim / kDepth; ++kk) {
    const u64 b = smem_descriptor(in_descriptor(rows), 16, step_offset(kk, kBlockM));
    if (4 * kk + 3 < N)
      Wgmma<kBlockM>::registers_kmajor(d, held + 4 * kk, b, kk != 0);
    else
      Wgmma<kBlockM>::shared(d, smem_descriptor(in_descriptor(keys), 16, step_offset(kk, kBlockN)), b, kk != 0);
  }
  wgmma_commit();
}
// dV += P^T dO and dK += dS^T Q: weights from registers, contracted along the rows.
template <int N>
DEV void issue_keys_by_columns(float (&d)[N], const Fragment<u32, kBlockM / 4>& weights, u32 rows, i32 accumulate) {
#pragma unroll
  for (u32 kk = 0; kk < kBlockM / kDepth; ++kk)
    Wgmma<2 * N>::registers_mnmajor(
        d, weights + 4 * kk,
        smem_descriptor(in_descriptor(rows), kBlockM * kBlockColumnBytes, kk * kDepth * kBlockColumnBytes),
        kk == 0 ? accumulate : 1);
  wgmma_commit();
}
// Where column `column` of K lies in a tile of keys.
DEV constexpr u32 column_offset(u32 column) {
  return column / kBlockColumns * kBlockN * kBlockColumnBytes + column % kBlockColumns * 2;
}
// A warpgroup's share of dQ = dS K, over the keys of this CTA. b: its first column of K's.
template <int N>
DEV void add_dq_product(float (&d)[N], u32 ds, u32 b, bool accumulate) {
#pragma unroll
  for (u32 kk = 0; kk < kBlockN / kDepth; ++kk)
    Wgmma<2 * N>::shared_mnmajor(
        d, smem_descriptor(in_descriptor(ds), 16, step_offset(kk, kBlockM)),
        smem_descriptor(in_descriptor(b), kBlockN * kBlockColumnBytes, kk * kDepth * kBlockColumnBytes),
        kk != 0 || accumulate);
}

}  // namespace onepass::sm90
