// The order of a deterministic sum of dQ.
#pragma once
#include "cuda/device/barrier.cuh"

#include "cuda/sm90/backward_tile.cuh"

namespace onepass::sm90 {

// Turns at the sums of a row block, so that they are added up in one order: from the last keys that it sees to the
// first. Each of eight warps' parts of a tile counts.
// How many counts come before a tile's at the row block that the walk is at.
DEV u32 counts_before(const Band& band, i32 key, const BlockWalk& walk) {
  const Band::Range keys = band.key_range(walk.row(), min(walk.row() + static_cast<i32>(kBlockM), band.seq_q));
  return static_cast<u32>((keys.hi - 1) / static_cast<i32>(kBlockN) - key / static_cast<i32>(kBlockN)) * kConsumerWarps;
}

}  // namespace onepass::sm90
