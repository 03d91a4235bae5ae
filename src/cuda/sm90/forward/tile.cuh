// Constants of the config, and the map of shared memory.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/attention/scores/scores.cuh"
#include "cuda/sm90/forward/config.hpp"

namespace onepass::sm90 {

constexpr ForwardLayout kLayout = layout_of(forward_features, config);
constexpr u32 kGroups = config.groups, kVGroups = config.v_groups, kBlockM = config.block_m(), kBlockN = config.block_n;
constexpr bool kBiasTiles = config.bias_stages > 0, kFp8 = features.input == ScalarType::e4m3;
constexpr bool kFp8Keys = !kFp8 && features.keys == ScalarType::e4m3;  // which become 16-bit ones, convert.cuh
constexpr bool kFactors = kFp8 || kFp8Keys;
constexpr u32 kInputColumns = kBlockColumnBytes / bytes_of(features.input);  // of a block of Q, K or V
constexpr u32 kQkBlocks = column_blocks(features.dim_qk, features.input);    // of Q's and K's columns
constexpr u32 kKeyColumns = kBlockColumnBytes / bytes_of(features.keys);     // of K and V as they come in
constexpr u32 kVBlocks = value_blocks(features, features.input, config);
constexpr u32 kIncomingQkBlocks = column_blocks(features.dim_qk, features.keys);  // of K's and V's, as they come
constexpr u32 kIncomingVBlocks = column_blocks(features.dim_v, features.keys);
constexpr u32 kOutN = out_columns(features.dim_v, config);  // columns of P V, of a warpgroup
constexpr u32 kOutBlocks = column_blocks(kOutN);            // of O's, 16 bits each
constexpr u32 kDepth = 32 / bytes_of(features.input);       // columns or keys that one instruction contracts
constexpr u32 kQkSteps = round_up(features.dim_qk, kDepth) / kDepth;
constexpr bool kLateValues = config.stages == 1;  // V comes under the product in front of its own
constexpr i32 kKeys = kBlockN;
using Scores = TileScores<config.column_groups>;
using Tiles = TileScheduler<RowsOuter<static_cast<i32>(kBlockM), kKeys>>;

// The addresses in shared memory, and the four pipelines through it.
struct SharedMemory {
  u32 base;
  DEV Pipeline<kLayout.q> q() const { return {base}; }  // [columns / 64][block_m][128 bytes]
  DEV Pipeline<kLayout.k> k() const { return {base}; }  // [columns / 64][block_n][128 bytes]
  DEV Pipeline<kLayout.v> v() const { return {base}; }  // the same; of e4m3 V^T, transpose.cuh
  DEV Pipeline<kLayout.incoming> incoming() const {
    return {base};
  }  // V of e4m3, as K; K and V of e4m3 beside 16-bit q
  DEV Pipeline<kLayout.bias> bias(u32 group) const { return {base, group}; }
  DEV u32 tile(u32 slot) const { return base + kLayout.tiles + kTileSlotBytes * slot; }  // a WorkTile
  DEV u32 factors(u32 slot) const { return tile(slot) + 48; }  // of the warpgroups' scores, and of V
  DEV u32 scales(u32 slot) const { return base + kLayout.scales + 8 * slot; }
  DEV u32 more(u32 slot) const { return base + kLayout.more + 8 * slot; }  // an IncomingTile, and its scale
  DEV u32 staging(u32 warp) const { return base + kLayout.staging + warp * (kLayout.staging_bytes / 4); }
};

// The contents of a stage of `incoming`.
enum IncomingTile : i32 { kNothing, kIncomingV, kIncomingK };
// Warps beside the one that loads: transpose.cuh, convert.cuh.
constexpr u32 kHelpers = 3;

// Named barriers; 0 is __syncthreads. kSchedulerBarrier + g: warpgroup g may issue its products.
enum NamedBarrier : u32 { kSchedulerBarrier = 1 };

constexpr u32 kGroupThreads = 128, kGroupWarps = 4;

}  // namespace onepass::sm90
