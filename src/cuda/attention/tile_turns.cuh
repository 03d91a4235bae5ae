// The turns of tiles of keys at a block's sums of dQ, where a mask leaves tiles out and the sums have one order. A tile
// that is left out is not counted, so those behind it move up.
#pragma once
#include "cuda/attention/backward/tile.cuh"

namespace onepass {

// True if a row of the block may see a key of the tile that begins at `key`, by the states of the mask's tiles.
DEV bool takes_turn(const BackwardParams& p, const WorkTile& x, i32 key) {
  i32 head = x.head, heads = 1;
  if constexpr (backward_shape.group_turns) {
    if (x.row >= 32 * kListWords * kBlockQ) return true;
    if (p.mask.tile_stride[1] != 0) heads = p.heads_per_kv, head -= head % heads;
  }
  const unsigned char* states = p.mask.tiles + x.batch * p.mask.tile_stride[0] + head * p.mask.tile_stride[1] +
                                x.row / 64 * p.mask.tile_stride[2] + key / 32;
  for (; heads > 0; --heads, states += p.mask.tile_stride[1]) {
    for (i32 n = 0; n < ceil_div(backward_shape.turn_keys, 32) && key + 32 * n < x.seq_k; ++n)
      if (states[n] != kAllMasked) return true;
  }
  return false;
}

// By one warp: counts those that take a turn at the block's sums, in the order in which tiles are drawn.
DEV void count_turns(const BackwardParams& p, const WorkTile& x, i64 place) {
  constexpr i32 kKeys = backward_shape.turn_keys;
  const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(x.row, min(x.row + kBlockQ, x.seq_q));
  const i32 lo = keys.lo / kKeys, tiles = ceil_div(keys.hi, kKeys) - lo, lane = static_cast<i32>(threadIdx.x % 32);
  const bool last_first = backward_shape.group_turns && last_keys_first(p);
  u32 before = 0;
  for (i32 first = 0; first < tiles; first += 32) {
    const i32 i = first + lane, key = (last_first ? lo + tiles - 1 - i : lo + i) * kKeys;
    const bool takes = i < tiles && takes_turn(p, x, key);
    const u32 taken = __ballot_sync(0xffffffffu, takes);
    if (takes) *turn_at(p, place, key) = before + static_cast<u32>(__popc(taken & ((1u << lane) - 1)));
    before += static_cast<u32>(__popc(taken));
  }
}

}  // namespace onepass
