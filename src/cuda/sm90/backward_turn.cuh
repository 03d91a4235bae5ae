// The order of a deterministic sum of dQ.
#pragma once
#include "cuda/device/barrier.cuh"

#include "cuda/sm90/backward_tile.cuh"

namespace onepass::sm90 {

// Turns at the sums of a row block, so that they are added up in one order: from the last keys that it sees to the
// first. Each of eight warps' parts of a tile counts.
struct Turn {
  u32* at;
  u32 before;  // counts of the tiles that come first
  static DEV Turn of(const BackwardParams& p, const KeyTile& tile, const BlockWalk& walk) {
    const Band band = band_of(p, tile.seq_q, tile.seq_k);
    const Band::Range keys = band.key_range(walk.row(), min(walk.row() + static_cast<i32>(kBlockM), tile.seq_q));
    const i32 last = (keys.hi - 1) / static_cast<i32>(kBlockN), own = tile.key / static_cast<i32>(kBlockN);
    return {p.turns + walk.place(p, tile.batch), static_cast<u32>(last - own) * kConsumerWarps};
  }
  DEV void wait() const { wait_for_count(at, before); }
  DEV void pass(u32 parts) const { add_release(at, parts); }
};

}  // namespace onepass::sm90
