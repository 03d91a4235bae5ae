// Constants of the config.
#pragma once
#include "cuda/attention/scores.cuh"
#include "cuda/sm90/forward_config.hpp"

namespace onepass::sm90 {

constexpr ForwardLayout kLayout = layout_of(features, config);
constexpr u32 kGroups = config.groups, kBlockM = 64 * kGroups, kBlockN = config.block_n;
constexpr u32 kStages = config.stages, kQStages = config.q_stages;
constexpr bool kBiasTiles = config.bias_stages > 0;
constexpr u32 kQkBlocks = padded(features.dim_qk, 64) / 64, kVBlocks = padded(features.dim_v, 64) / 64;  // 64 columns
constexpr u32 kQkSteps = padded(features.dim_qk, 16) / 16;  // of Q K^T's depth
constexpr u32 kOutN = padded(features.dim_v, 16);           // columns of P V
constexpr u32 kFullQ = kLayout.barriers, kEmptyQ = kFullQ + 8 * kQStages, kFullK = kEmptyQ + 8 * kQStages,
              kEmptyK = kFullK + 8 * kStages, kFullV = kEmptyK + 8 * kStages, kEmptyV = kFullV + 8 * kStages,
              kFullB = kEmptyV + 8 * kStages, kEmptyB = kFullB + 8 * config.bias_stages * kGroups;
constexpr i32 kKeys = kBlockN;
// Whether a tile's first softmax runs under the last P V of the tile before. By groups it spills (d64 causal: -2 %).
constexpr bool kEarlySoftmax = !kByGroups;
using Tiles = TileSource<static_cast<i32>(kBlockM), kKeys>;

}  // namespace onepass::sm90
