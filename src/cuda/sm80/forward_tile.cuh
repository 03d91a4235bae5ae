// Constants of the config.
#pragma once
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/sm80/forward_config.hpp"
#include "cuda/sm80/tile.cuh"

namespace onepass::sm80 {

constexpr ForwardLayout kLayout = layout_of(forward_features, config);
constexpr i32 kBlockM = config.block_m(), kBlockN = config.block_n, kStages = config.stages;
using Tiles = TileScheduler<RowsOuter<kBlockM, kBlockN>>;

}  // namespace onepass::sm80
