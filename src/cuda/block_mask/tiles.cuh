// The states of the tiles of a mask_mod, by interval arithmetic (user::mask_bounds): nothing of the matrix of rows and
// keys is made. A warp has a strip, 32 tiles of keys beside each other, of which a lane has one.
//
// exact: the warp evaluates the elements of each tile that bounds leave open, until one is visible and one hidden.
#pragma once
#include "cuda/block_mask/block_mask.hpp"
#include "cuda/block_mask/buffer.cuh"

namespace onepass {
namespace user {

struct LeveledBuffer {
  const ModBufferView& view;
  const interval::Levels& levels;
};
// The `buffers_` of mask_bounds.
struct LeveledBuffers {
  const BlockMaskParams& p;
  DEV LeveledBuffer operator[](i32 i) const { return {p.buffers[i], p.levels[i]}; }
};

template <class Element, int rank, class... Index>
DEV Bounds elements(const LeveledBuffer& b, Bounds, Index... index) {
  static_assert(sizeof...(Index) == rank);
  const Bounds at[] = {index...};
  return interval::in_buffer(BoundedBuffer<Element>{b.view, b.levels, rank}, at);
}

}  // namespace user

enum TileState : i32 { kEmpty, kMixed, kFull };

struct MaskTiles {
  const BlockMaskParams& p;
  i32 b, h, row, rows;  // the first row of the tiles, and how many they have

  DEV i32 keys_of(i32 tile) const { return min(p.tile_k, p.keys - tile * p.tile_k); }
  DEV TileState by_bounds(i32 tile) const {
    const double key = tile * p.tile_k;
    const interval::Bounds seen =
        user::mask_bounds(interval::just(b), interval::just(h), interval::between(row, row + (rows - 1)),
                          interval::between(key, key + (keys_of(tile) - 1)), user::LeveledBuffers{p});
    return interval::is_true(seen) ? kFull : interval::is_false(seen) ? kEmpty : kMixed;
  }
  // The whole warp evaluates the tile.
  DEV TileState by_elements(i32 tile) const {
    const i32 key = tile * p.tile_k, keys = keys_of(tile);
    bool shows = false, hides = false;
    for (i32 r = 0; r < rows; ++r) {
      for (i32 k = threadIdx.x % 32; k < keys; k += 32) {
        const bool seen = user::mask_mod(b, h, row + r, key + k, p.buffers);
        shows = shows || seen, hides = hides || !seen;
      }
      if (__any_sync(0xffffffffu, shows) && __any_sync(0xffffffffu, hides)) return kMixed;
    }
    return __any_sync(0xffffffffu, shows) ? kFull : kEmpty;
  }
};

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kBlockMaskThreads)
    mask_tiles(const __grid_constant__ onepass::BlockMaskParams p) {
  using namespace onepass;
  constexpr i32 kWarps = kBlockMaskThreads / 32;
  const i32 lane = static_cast<i32>(threadIdx.x % 32), warp = static_cast<i32>(threadIdx.x / 32);
  for (i64 unit = static_cast<i64>(blockIdx.x) * kWarps + warp; unit < p.units;
       unit += static_cast<i64>(gridDim.x) * kWarps) {
    const i64 above = unit / p.strips, bh = above / p.row_tiles;
    const i32 row_tile = static_cast<i32>(above - bh * p.row_tiles), first = static_cast<i32>(unit % p.strips) * 32,
              tile = first + lane, b = static_cast<i32>(bh / p.heads), row = row_tile * p.tile_q;
    const MaskTiles tiles = {p, b, static_cast<i32>(bh % p.heads), row, min(p.tile_q, p.rows - row)};
    const bool in = tile < p.key_tiles;
    TileState state = in ? tiles.by_bounds(tile) : kEmpty;
    for (u32 open = p.exact ? __ballot_sync(0xffffffffu, state == kMixed) : 0; open != 0; open &= open - 1) {
      const i32 of = __ffs(static_cast<int>(open)) - 1;
      const TileState found = tiles.by_elements(first + of);
      if (lane == of) state = found;
    }
    if (in) p.states[b * p.stride[0] + tiles.h * p.stride[1] + row_tile * p.stride[2] + tile * p.stride[3]] = state;
  }
}
