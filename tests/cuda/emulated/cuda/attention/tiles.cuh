// Of src/cuda/attention/tiles.cuh only what the products' headers name.
#pragma once
#include "cuda/device/mma.cuh"

namespace onepass {

template <i32 block_m, i32 block_n>
struct TileSource;

}  // namespace onepass
