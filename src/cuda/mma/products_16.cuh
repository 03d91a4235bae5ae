// The two kinds of matrix products of a warp for fp16 and bf16: mma.sync.m16n8k16, fragments by ldmatrix.
//
// A products file gives the kernels: LeftFragments, rows of a tile as the left operand; Weights, a left operand made of
// results; multiply_rows, S = A B^T; multiply_columns, O += W B. Tiles lie in shared memory as TileCopy writes them.
#pragma once
#include "cuda/mma/mma.cuh"
#include "cuda/mma/tile.cuh"

namespace onepass::mma {

constexpr i32 kStep = 16;          // elements of a dot product in one instruction
constexpr i32 kGroupColumns = 16;  // of a tile that multiply_columns reads at once: 32 bytes

template <i32 tokens>
using Weights = u32[tokens / 4];  // A fragments: those of tokens 16 k .. 16 k + 15 begin at 4 k

// Columns 16 k .. 16 k + 15 of `tiles` times sixteen rows of a tile.
template <i32 tiles, i32 pitch>
struct LeftFragments {
  u32 of[4 * tiles];

  static DEV u32 address(u32 tile) {  // of this lane's row of the first row tile of this warp
    const u32 thread = own_thread(), lane = thread % 32;
    return tile + swizzled(thread / 32 / kSameRows * (16 * tiles) + lane % 16, lane / 16, pitch);
  }
  DEV void load(u32 address, i32 k) {
#pragma unroll
    for (i32 r = 0; r < tiles; ++r) ldmatrix4(of + 4 * r, along(address, 2 * k) + 16 * r * pitch);
  }
};

// left(address, k): LeftFragments of A; N / 4 groups of eight rows of B. add: to what S holds. block: see along.
template <i32 depth, i32 pitch, bool add = false, u32 block = 128, i32 tiles, i32 N, class Left>
DEV void multiply_rows(float (&s)[tiles][N], u32 tile, const Left& left) {
  const u32 lane = own_thread() % 32, left_rows = left.address();
  const u32 rows = tile + swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2, pitch);
  if constexpr (!add) clear(s);
#pragma unroll
  for (i32 k = 0; k < depth / 16; ++k) {
    const auto a = left(left_rows, k);
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      u32 b[4];
      ldmatrix4(b, along<block>(rows, 2 * k) + 16 * n * pitch);
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
        mma_16816(Element{}, s[r] + 8 * n, a.of + 4 * r, b[0], b[1]);
        mma_16816(Element{}, s[r] + 8 * n + 4, a.of + 4 * r, b[2], b[3]);
      }
    }
  }
}

// `tokens` rows of B, N / 8 groups of its columns: first_group and every step-th from there, step a power of two.
template <i32 tokens, i32 pitch, i32 step = 1, u32 block = 128, i32 tiles, i32 N>
DEV void multiply_columns(float (&o)[tiles][N], const Weights<tokens> (&w)[tiles], u32 tile, u32 first_group = 0) {
  const u32 lane = own_thread() % 32;
  const u32 values = along<block>(tile + swizzled(lane % 16, lane / 16, pitch), 2 * first_group);
#pragma unroll
  for (i32 k = 0; k < tokens / 16; ++k) {
#pragma unroll
    for (i32 n = 0; n < N / 8; ++n) {
      u32 b[4];
      ldmatrix4_transposed(b, along<block>(values, 2 * step * n) + 16 * k * pitch);
#pragma unroll
      for (i32 r = 0; r < tiles; ++r) {
        mma_16816(Element{}, o[r] + 8 * n, w[r] + 4 * k, b[0], b[1]);
        mma_16816(Element{}, o[r] + 8 * n + 4, w[r] + 4 * k, b[2], b[3]);
      }
    }
  }
}

// Results on their way to other warps: `tokens` columns, from a group of them on, of sixteen rows from `row` on. Taken
// as a left operand: the same rows, or sixteen columns of `tokens` rows, transposed.
template <i32 tokens, i32 pitch>
DEV void store_results(const Weights<tokens>& w, u32 tile, u32 row, u32 first_group) {
  const u32 lane = opaque_thread() % 32;
#pragma unroll
  for (i32 j = 0; j < tokens / 4; ++j)
    store_word(tile + swizzled(row + j % 2 * 8 + lane / 4, 2 * first_group + j / 2, pitch) + lane % 4 * 4,
               static_cast<i32>(w[j]));
}
template <i32 tokens, i32 pitch>
DEV void load_results(Weights<tokens>& w, u32 tile, u32 row, u32 first_group) {
  const u32 lane = opaque_thread() % 32, from = tile + swizzled(row + lane % 16, 2 * first_group + lane / 16, pitch);
#pragma unroll
  for (i32 k = 0; k < tokens / 16; ++k) ldmatrix4(w + 4 * k, along(from, 2 * k));
}
template <i32 tokens, i32 pitch>
DEV void load_transposed(Weights<tokens>& w, u32 tile, u32 column) {
  const u32 lane = opaque_thread() % 32;
  const u32 from = tile + swizzled(lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2, pitch);
#pragma unroll
  for (i32 k = 0; k < tokens / 16; ++k) ldmatrix4_transposed(w + 4 * k, from + 16 * k * pitch);
}

}  // namespace onepass::mma
