// The order of a deterministic sum of dQ.
#pragma once
#include "cuda/device/barrier.cuh"

#include "cuda/sm90/backward_tile.cuh"

namespace onepass::sm90 {

// Turns at the sums of a row block, so that they are added up in one order: from the first keys that it sees to the
// last. How many tiles come before one at the row block that its walk is at.
DEV u32 tiles_before(const Band& band, i32 key, const BlockWalk& walk) {
  const Band::Range keys = band.key_range(walk.row(), min(walk.row() + static_cast<i32>(kBlockM), band.seq_q));
  return static_cast<u32>(key / static_cast<i32>(kBlockN) - keys.lo / static_cast<i32>(kBlockN));
}

}  // namespace onepass::sm90
