// Rows of tiles in shared memory, and their distribution over warps, of the kernels on mma.sync (sm80, decode). The
// source text of such a kernel begins with its `config` in this namespace.
#pragma once
#include "cuda/device/shared.cuh"

#include "cuda/mma/elements.cuh"
#include "cuda/mma/fragment.cuh"

namespace onepass::mma {

constexpr i32 kThreads = config.threads(), kRowTiles = config.row_tiles, kWarpRows = 16 * kRowTiles;
constexpr i32 kElementBytes = bytes_of(features.input);
constexpr i32 kQkDepth = round_up(features.dim_qk, 16), kOutN = round_up(features.dim_v, 16);  // as they are multiplied

// Two sums of 64 columns and more beside each other: products read less ahead.
constexpr bool kFewRegisters = config.kSums == 2;
constexpr i32 kShare = config.share, kSameRows = config.same_rows();  // warps of the same rows

// Two row tiles leave no registers for what follows from the thread's index, which is then worked out at every use;
// with one it may stay.
DEV u32 own_thread() { return kRowTiles == 2 ? opaque_thread() : threadIdx.x; }

// A row of a tile is a multiple of 128 bytes; its 16-byte chunk c lies at chunk c ^ turn(row), so that what a warp
// reads at once fills all 32 banks evenly. 16 bits: ldmatrix reads one chunk of each of eight rows. fp32: two
// neighbouring chunks, by half a warp of four neighbouring rows (in pairs of elements), by a warp of every second row
// (in elements).
DEV u32 turn(u32 row) { return features.input == ScalarType::f32 ? (row & 6) ^ (row & 1) << 2 : row % 8; }
DEV u32 swizzled(u32 row, u32 chunk, u32 pitch) { return row * pitch + (chunk ^ turn(row)) * 16; }
// The address `step` chunks further along the same row, for chunks below the lowest bit of step. block: bytes from a
// row's 128 bytes to the next.
template <u32 block = 128>
DEV u32 along(u32 address, u32 step) {
  return (address ^ step % 8 * 16) + step / 8 * block;
}

template <i32 rows, i32 n>
DEV void clear(float (&x)[rows][n]) {
#pragma unroll
  for (i32 r = 0; r < rows; ++r) fill(x[r], 0.0f);
}

// A loop of one turn, which ptxas does not know: it leaves no sums of f's for later. Without it, 64 additions wait for
// the end of a product, each in a register.
template <bool kSo, class F>
DEV void by_itself(const F& f) {
  if constexpr (kSo) {
#pragma unroll 1
    for (u32 turns = opaque(1u); turns != 0; --turns) f();
  } else {
    f();
  }
}

}  // namespace onepass::mma
