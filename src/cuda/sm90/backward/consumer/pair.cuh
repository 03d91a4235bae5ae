// Two CTAs of a cluster that work on 128 keys together, 64 each, through the same blocks of rows. dQ's
// sums in global memory are what holds wide heads up, so each adds up half of dQ's columns over the keys of both: it
// gets the other's dS, 8 KB a block, and has loaded these columns of the other's K.
// What is written when: pairs.md.
#pragma once
#include "cuda/device/cluster.cuh"
#include "cuda/device/pipeline.cuh"
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward/consumer/products.cuh"
#include "cuda/sm90/backward/sums.cuh"

namespace onepass::sm90 {

constexpr bool kPaired = config.paired;
static_assert(!kPaired || (kQkBlocks == 3 && kBlockM == 64));
constexpr u32 kDsBytes = kBlockM * kBlockColumnBytes;  // of 64 keys

DEV u32 own_ds() { return kPaired ? pair_rank() : 0; }  // which 64 keys of a stage of dS
// The first key of the other block's tile.
DEV i32 partner_key(i32 key) { return key + static_cast<i32>(kBlockN) * (1 - 2 * static_cast<i32>(pair_rank())); }
DEV void arrive_there(u32 bar, bool arrives) {
  if (kWarpArrivals == 32 || arrives) mbar_arrive_there(of_partner(bar));
}

// Where the operands of a warpgroup's columns of dQ lie.
struct PairedKeys {
  u32 group, rank;
  DEV u32 ds(bool partner) const { return (rank ^ static_cast<u32>(partner)) * kDsBytes; }
  DEV u32 column() const { return paired_column(group, rank); }
  DEV u32 own() const { return column_offset(column()); }
  DEV u32 partner() const { return own_keys_bytes(features, config) + column_offset(column() - rank * kBlockColumns); }
};

// The warp that sends dS to the other CTA, into the same place there. It is free: both blocks' consumers
// release a stage in both, and dS is only written into a free one.
template <class Memory>
DEV void send_ds(const Memory& memory, const BackwardParams& p) {
  const bool issuer = elect_one();
  u32 block = 0;
  each_key_tile(memory, p, [&](Pipeline<kLayout.k>& k, const KeyTile&, const auto& slot, BlockWalk at) {
    for (bool more = true; more; ++block) {
      more = at.next(p, slot());
      __syncwarp();
      if (!more) k.release(issuer);  // its last use ends before that of the consumers, which are still running
      const Pipeline<kLayout.ds> ds = memory.ds().at(block);
      const u32 come = memory.partner().at(block).full(), from = ds.stage() + own_ds() * kDsBytes;
      ds.wait();
      if (issuer) {
        async_proxy_fence();
        mbar_arrive_expect(come, kDsBytes);  // of what comes here
        bulk_copy_there(of_partner(from), from, kDsBytes, of_partner(come));
      }
      __syncwarp();
    }
  });
}

// The warp that adds what both warpgroups stage of dQ to its sums.
template <class Memory>
DEV void add_paired_dq(const Memory& memory, const BackwardParams& p) {
  const bool issuer = elect_one();
  u32 block = 0;
  each_key_tile(memory, p, [&](Pipeline<kLayout.k>& k, const KeyTile&, const auto& slot, BlockWalk at) {
    for (bool more = true; more; ++block) {
      float* const sums = dq_sums_of(p, at.place(p, load_key_tile(slot()).batch));
      more = at.next(p, slot());
      __syncwarp();
      if (!more) k.release(issuer);
#pragma unroll
      for (u32 group = 0; group < kGroups; ++group) {
        constexpr u32 kWarpBytes[] = {16 * kDqN<0> * 4, 16 * kDqN<1> * 4};
        const Pipeline<kLayout.dq> stage = memory.dq(group).at(block);
        stage.wait();
        if (!issuer) continue;
        async_proxy_fence();
        const u32 column = paired_column(static_cast<int>(group), static_cast<int>(pair_rank()));
#pragma unroll
        for (u32 warp = 0; warp < kGroupWarps; ++warp)
          bulk_add(sums + sum_tile(static_cast<i32>(warp * 16), static_cast<i32>(column / 8)),
                   stage.stage() + warp * kWarpBytes[group], kWarpBytes[group]);
        tma_store_commit();
      }
      if (issuer) tma_store_wait_read();
      __syncwarp();
#pragma unroll
      for (u32 group = 0; group < kGroups; ++group) warp_arrive(memory.dq(group).at(block).empty(), issuer);
    }
  });
  if (issuer) tma_store_wait();  // shared memory must outlive the last sum
}

}  // namespace onepass::sm90
