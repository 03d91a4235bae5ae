// The warps that add to sums in global memory what the joint kernel's consumers stage: one for each of their
// warpgroups.
#pragma once
#include "cuda/sm90/backward/consumer/order.cuh"
#include "cuda/sm90/backward/producer.cuh"
#include "cuda/sm90/backward/zeros.cuh"

namespace onepass::sm90 {

// Adds what a warpgroup stages; one thread of a warp does. The fence is the reader's: writers have none in their loop.
struct Reducer {
  const SharedMemory& memory;
  const u32 group;
  const Maps& maps;
  const BackwardParams& p;
  const bool issuer = elect_one();
  Pipeline<kLayout.dq> stage = memory.dq(group);
  ZerosSeen zeros{};

  template <class Issue>
  DEV void pass_on(const Issue& issue) {
    stage.wait();
    if (issuer) {
      async_proxy_fence();
      issue();
      tma_store_commit();
      tma_store_wait_read();
    }
    stage.release(issuer);
  }
  template <class Place>
  DEV void add_dq(const Place& place) {
    pass_on([&] {  // where dq is not asked for there are no sums
      if constexpr (config.zeroes) zeros.wait(p, place());
      if constexpr (backward_features.dq)
        bulk_add(dq_sums_of(p, place()) + group * (kDqBytes<0> / 4), stage.stage(),
                 group == 0 ? kDqBytes<0> : kDqBytes<1>);
    });
  }
  // 64 rows and 64 keys of dS.
  DEV void add_dbias(const KeyTile& tile, const BlockWalk& at) {
    const i32 head = min(at.head, p.bias_size[1] - 1), batch = min(tile.batch, p.bias_size[0] - 1);
    pass_on([&] {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const u32 from = stage.stage() + i * kBlockM * kBlockColumnBytes;
        const i32 key = tile.key + static_cast<i32>(group * kGroupKeys + i * 32);
        if constexpr (config.dbias_adds)
          tma_add(maps.dbias, from, key, at.row(), head, batch);
        else
          tma_store(maps.dbias, from, key, at.row(), head, batch);
      }
    });
  }
};

// dbias, which is ready as soon as dS is, comes before dQ of the block before it.
DEV void reduce(const SharedMemory& memory, u32 group, const Maps& maps, const BackwardParams& p) {
  fill_until(p, [&] { return memory.dq(group).try_wait(); });
  Reducer to{memory, group, maps, p};
  i32 before = -1;
  each_key_tile(memory, p, [&](Pipeline<kLayout.k>& k, const KeyTile& tile, const auto& slot, BlockWalk at) {
    do {
      const auto place = [&] { return static_cast<i32>(at.place(p, tile.batch)); };
      if constexpr (config.dbias_tiles) {
        to.add_dbias(tile, at);
        if (before >= 0) to.add_dq([&] { return before; });
        before = place();
      } else {
        to.add_dq(place);
      }
      __syncwarp();
    } while (at.next(p, slot()));
    k.release(to.issuer);
  });
  if (before >= 0) to.add_dq([&] { return before; });
  if (to.issuer) tma_store_wait();  // shared memory must outlive the last sum
}

// In one order (order.cuh). An addition takes longer than a block: the answer of the count 900 cycles, the sum 1800,
// telling the next tile 800. So the two warps alternate between blocks, both warpgroups' parts at once; the stage has
// two pairs of barriers, one for each of them, and is free for the next block when the sum has read it.
DEV void add_dq_in_order(const SharedMemory& memory, const BackwardParams& p, u32 block, i64 place, u32 number,
                         bool issuer) {
  const Pipeline<kLayout.order> stage = memory.order().at(block);
  if (issuer) {
    wait_for_count(p.order + place, number);  // asked ahead of the time
    async_proxy_fence_global();
    stage.wait();
    async_proxy_fence();
    bulk_add(dq_sums_of(p, place), stage.stage(), kDqBytes<0> + kDqBytes<1>);
    tma_store_commit();
    tma_store_wait_read();
  }
  __syncwarp();
  warp_arrive(stage.empty(), issuer);
  if (issuer) {
    tma_store_wait();
    async_proxy_fence_global();
    add_release(p.order + place, 1);
  }
  __syncwarp();
}
DEV void reduce_in_order(const SharedMemory& memory, u32 own, const BackwardParams& p) {
  const bool issuer = elect_one();
  u32 block = 0;
  each_key_tile(memory, p, [&](Pipeline<kLayout.k>& k, const KeyTile&, const auto& slot, BlockWalk at) {
    do {
      if (block % 2 == own) {
        const KeyTile x = load_key_tile(slot());  // again: registers are few
        add_dq_in_order(memory, p, block, at.place(p, x.batch), tiles_before(p, x, at), issuer);
      }
      ++block;
    } while (at.next(p, slot()));
    k.release(issuer);
  });
}

}  // namespace onepass::sm90
