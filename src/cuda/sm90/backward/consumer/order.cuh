// The order of a deterministic sum of dQ.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/sm90/backward/tile.cuh"

namespace onepass::sm90 {

// The sums of a row block are added up in one order, that of KeysOuter. The number of tiles that come before a tile at
// the row block that its walk is at.
DEV u32 tiles_before(const BackwardParams& p, const KeyTile& x, const BlockWalk& walk) {
  if constexpr (kLeavesOut) return *turn_at(p, walk.place(p, x.batch), x.key);
  const Band32 band = band_of(p, x.seq_q, x.seq_k);
  const Band32::Range keys = band.key_range(walk.row(), min(walk.row() + static_cast<i32>(kBlockM), band.seq_q));
  constexpr i32 kKeys = kBlockN;
  return static_cast<u32>(last_keys_first(p) ? (keys.hi - 1) / kKeys - x.key / kKeys : x.key / kKeys - keys.lo / kKeys);
}

// Split: the warp that waits for the counters and advances them for the consumers, since both are trips to L2.
// Consumers add a block's dQ when its stage is full; it is empty when all of their warps have.
DEV void keep_order(const SharedMemory& memory, const BackwardParams& p) {
  const bool issuer = elect_one();
  u32 block = 0;
  each_key_tile(memory, p, [&](Pipeline<kLayout.k>& k, const KeyTile&, const auto& slot, BlockWalk at) {
    for (bool more = true; more; ++block) {
      const KeyTile x = load_key_tile(slot());  // again: registers are few
      const u32 number = tiles_before(p, x, at);
      u32* const count = p.order + at.place(p, x.batch);
      more = at.next(p, slot());
      __syncwarp();
      if (!more) k.release(issuer);  // its last use ends before that of the consumers, which are still running
      const Pipeline<kLayout.order> stage = memory.order().at(block);
      if (issuer) {
        wait_for_count(count, number);
        mbar_arrive(stage.full());
      }
      stage.wait_released();
      if (issuer) add_release(count, 1);
      __syncwarp();
    }
  });
}

}  // namespace onepass::sm90
