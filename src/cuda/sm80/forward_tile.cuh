// Constants of the config.
#pragma once
#include "cuda/attention/elements.cuh"
#include "cuda/attention/tiles.cuh"
#include "cuda/sm80/forward_config.hpp"

namespace onepass::sm80 {

constexpr ForwardLayout kLayout = layout_of(features, config);
constexpr i32 kThreads = config.threads(), kRowTiles = config.row_tiles, kBlockM = config.block_m();
constexpr i32 kBlockN = config.block_n, kStages = config.stages;
constexpr i32 kWarpRows = 16 * kRowTiles;
constexpr i32 kElementBytes = bytes_of(features.input);
constexpr i32 kQkDepth = padded(features.dim_qk, 16);  // of Q K^T
constexpr i32 kOutN = padded(features.dim_v, 16);      // columns of P V
using Tiles = TileSource<kBlockM, kBlockN>;

// 16-byte chunk c of a row lies at chunk c ^ (row % 8): eight rows of a column of chunks fill all 32 banks once.
DEV u32 swizzled(u32 row, u32 chunk, u32 pitch) { return row * pitch + (chunk ^ (row % 8)) * 16; }

DEV i32 load_word(u32 from) {
  i32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
DEV void store_word(u32 to, i32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }

}  // namespace onepass::sm80
