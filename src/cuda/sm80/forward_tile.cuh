// Constants of the config.
#pragma once
#include "cuda/device/shared.cuh"

#include "cuda/attention/elements.cuh"
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/sm80/forward_config.hpp"

namespace onepass::sm80 {

constexpr ForwardLayout kLayout = layout_of(forward_features, config);
constexpr i32 kThreads = config.threads(), kRowTiles = config.row_tiles, kBlockM = config.block_m();
constexpr i32 kBlockN = config.block_n, kStages = config.stages;
constexpr i32 kWarpRows = 16 * kRowTiles;
constexpr i32 kElementBytes = bytes_of(features.input);
constexpr i32 kQkDepth = padded(features.dim_qk, 16);  // of Q K^T
constexpr i32 kOutN = padded(features.dim_v, 16);      // columns of P V
using Tiles = TileScheduler<RowsOuter<kBlockM, kBlockN>>;

// Two row tiles leave no registers for what follows from the thread's index, which is then worked out at every use;
// with one it may stay.
DEV u32 own_thread() { return kRowTiles == 2 ? opaque_thread() : threadIdx.x; }

// A row of a tile is a multiple of 128 bytes; its 16-byte chunk c lies at chunk c ^ turn(row), so that what a warp
// reads at once fills all 32 banks evenly. 16 bits: ldmatrix reads one chunk of each of eight rows. fp32: two
// neighbouring chunks, by half a warp of four neighbouring rows (in pairs of elements), by a warp of every second row
// (in elements).
DEV u32 turn(u32 row) { return features.input == ScalarType::f32 ? (row & 6) ^ (row & 1) << 2 : row % 8; }
DEV u32 swizzled(u32 row, u32 chunk, u32 pitch) { return row * pitch + (chunk ^ turn(row)) * 16; }
// The address `step` chunks further along the same row, for chunks below the lowest bit of step.
DEV u32 along(u32 address, u32 step) { return (address ^ step % 8 * 16) + step / 8 * 128; }

}  // namespace onepass::sm80
