// Constants of the config.
#pragma once
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/mma/tile.cuh"
#include "cuda/sm80/forward/config.hpp"

namespace onepass::sm80 {

using namespace mma;  // tiles in shared memory, copies into them and products of them

constexpr ForwardLayout kLayout = layout_of(forward_features, config);
constexpr i32 kBlockM = config.block_m(), kBlockN = config.block_n, kStages = config.stages;
using Tiles = TileScheduler<RowsOuter<kBlockM, kBlockN>>;

}  // namespace onepass::sm80
