// Constants of the config, and the map of shared memory.
#pragma once
#include "cuda/device/pipeline.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"

#include "cuda/jvp/results.cuh"
#include "cuda/jvp/sm90/config.hpp"

namespace onepass::cuda::jvp::sm90 {

constexpr Layout kLayout = layout_of(jvp_features, config);
constexpr i32 kBlockM = config.block_m(), kKeys = config.block_n;
constexpr u32 kGroups = config.groups, kVGroups = config.v_groups, kGroupThreads = 128, kGroupWarps = 4,
              kGroupRows = 64;
constexpr i32 kOutN = out_columns(features.dim_v, config);  // columns of O that a warpgroup computes
constexpr u32 kQkBlocks = column_blocks(features.dim_qk), kOutBlocks = column_blocks(kOutN);
constexpr u32 kVBlocks = kVGroups * kOutBlocks;
constexpr u32 kRowBlockBytes = kBlockM * kBlockColumnBytes;  // of Q's rows: a block of columns
constexpr u32 kKeyBlockBytes = kKeys * kBlockColumnBytes;    // of K's or V's
using Tiles = TileScheduler<RowsOuter<kBlockM, kKeys>>;
using Scores = JvpScores<(features.dim_v <= 64)>;

struct Maps {
  TensorMap q, tq, k, tk, v, tv, out, tout;
};

struct SharedMemory {
  u32 base;
  DEV Pipeline<kLayout.q> q() const { return {base}; }
  DEV Pipeline<kLayout.k> k() const { return {base}; }
  DEV Pipeline<kLayout.v> v() const { return {base}; }
  DEV u32 tile(u32 slot) const { return base + kLayout.tiles + slot * kTileSlotBytes; }  // slot: Q's parity
  DEV u32 staging(u32 warp) const { return base + kLayout.staging + warp * kLayout.staging_bytes; }
};

// Named barriers; 0 is __syncthreads. kTurn + g: warpgroup g may issue S. kStored: all parts of a tile's rows are
// stored.
enum NamedBarrier : u32 { kTurn = 1, kStored = kTurn + kGroups };

}  // namespace onepass::cuda::jvp::sm90
