// Constants of the config, and the map of shared memory.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/attention/scores.cuh"
#include "cuda/sm90/forward_config.hpp"

namespace onepass::sm90 {

constexpr ForwardLayout kLayout = layout_of(forward_features, config);
constexpr u32 kGroups = config.groups, kBlockM = kGroupRows * kGroups, kBlockN = config.block_n;
constexpr bool kBiasTiles = config.bias_stages > 0;
constexpr u32 kQkBlocks = padded(features.dim_qk, kBlockColumns) / kBlockColumns;  // of Q's and K's columns
constexpr u32 kVBlocks = padded(features.dim_v, kBlockColumns) / kBlockColumns;
constexpr u32 kQkSteps = padded(features.dim_qk, 16) / 16;  // of Q K^T's depth
constexpr u32 kOutN = padded(features.dim_v, 16);           // columns of P V
constexpr i32 kKeys = kBlockN;
using Scores = TileScores<config.column_groups>;
using Tiles = TileScheduler<RowsOuter<static_cast<i32>(kBlockM), kKeys>>;

// The addresses in shared memory, and the four pipelines through it.
struct SharedMemory {
  u32 base;
  DEV Pipeline<kLayout.q> q() const { return {base}; }  // [columns / 64][block_m][128 bytes]
  DEV Pipeline<kLayout.k> k() const { return {base}; }  // [columns / 64][block_n][128 bytes]
  DEV Pipeline<kLayout.v> v() const { return {base}; }  // the same
  DEV Pipeline<kLayout.bias> bias(u32 group) const { return {base, group}; }
  DEV u32 tile(u32 slot) const { return base + kLayout.tiles + kTileSlotBytes * slot; }  // a WorkTile
  DEV u32 staging(u32 warp) const { return base + kLayout.staging + warp * (kLayout.staging_bytes / 4); }
};

// Barriers of the block's threads by number; 0 is __syncthreads.
enum NamedBarrier : u32 { kTurn = 1 };  // kTurn + g: warpgroup g may issue its products

constexpr u32 kGroupThreads = 128, kGroupWarps = 4;

}  // namespace onepass::sm90
