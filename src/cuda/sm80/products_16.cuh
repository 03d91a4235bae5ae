// The two matrix products of a warp for fp16 and bf16: mma.sync.m16n8k16, fragments by ldmatrix.
//
// A products file gives the kernel: QueryOperand, this warp's rows of Q; Weights, the weights of one row tile as
// softmax leaves them; issue_scores, S = Q K^T; issue_output, O += P V. Tiles lie in shared memory as TileCopy writes
// them.
#pragma once
#include "cuda/device/mma.cuh"
#include "cuda/sm80/forward_tile.cuh"

namespace onepass::sm80 {

using Weights = u32[kBlockN / 4];  // A fragments: those of keys 16 k .. 16 k + 15 begin at 4 k

struct QueryOperand {
  u32 tile;  // the block's
  u32 fragment[config.q_registers ? kRowTiles * kQkDepth / 4 : 1];

  DEV void load() {  // once Q has come
    if constexpr (config.q_registers) {
#pragma unroll
      for (i32 k = 0; k < kQkDepth / 16; ++k) fragments(fragment + 4 * kRowTiles * k, address(), k);
    }
  }
  DEV u32 address() const {  // of this lane's row of the first row tile
    const u32 thread = own_thread(), lane = thread % 32;
    return tile + swizzled(thread / 32 * kWarpRows + lane % 16, lane / 16, kLayout.q_pitch);
  }
  static DEV void fragments(u32* a, u32 address, i32 k) {  // columns 16 k .. 16 k + 15 of every row tile
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) ldmatrix4(a + 4 * r, along(address, 2 * k) + 16 * r * kLayout.q_pitch);
  }
};

DEV void issue_scores(float (&s)[kRowTiles][kBlockN / 2], const QueryOperand& query, u32 tile) {
  const u32 lane = own_thread() % 32;
  const u32 queries = config.q_registers ? 0 : query.address();
  const u32 keys = tile + swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2, kLayout.k_pitch);
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 j = 0; j < kBlockN / 2; ++j) s[r][j] = 0.0f;
  }
#pragma unroll
  for (i32 k = 0; k < kQkDepth / 16; ++k) {
    u32 a[4 * kRowTiles];
    if constexpr (!config.q_registers) QueryOperand::fragments(a, queries, k);
#pragma unroll
    for (i32 n = 0; n < kBlockN / 16; ++n) {
      u32 b[4];
      ldmatrix4(b, along(keys, 2 * k) + 16 * n * kLayout.k_pitch);
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        const u32* q = config.q_registers ? query.fragment + 4 * (kRowTiles * k + r) : a + 4 * r;
        mma_16816(Element{}, s[r] + 8 * n, q, b[0], b[1]);
        mma_16816(Element{}, s[r] + 8 * n + 4, q, b[2], b[3]);
      }
    }
  }
}

DEV void issue_output(float (&o)[kRowTiles][kOutN / 2], const Weights (&w)[kRowTiles], u32 tile) {
  const u32 lane = own_thread() % 32;
  const u32 values = tile + swizzled(lane % 16, lane / 16, kLayout.v_pitch);
#pragma unroll
  for (i32 k = 0; k < kBlockN / 16; ++k) {
#pragma unroll
    for (i32 n = 0; n < kOutN / 16; ++n) {
      u32 b[4];
      ldmatrix4_transposed(b, along(values, 2 * n) + 16 * k * kLayout.v_pitch);
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        mma_16816(Element{}, o[r] + 8 * n, w[r] + 4 * k, b[0], b[1]);
        mma_16816(Element{}, o[r] + 8 * n + 4, w[r] + 4 * k, b[2], b[3]);
      }
    }
  }
}

}  // namespace onepass::sm80
