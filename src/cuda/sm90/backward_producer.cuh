// The helpers' warpgroup: a producer warp, which draws tiles and loads K, V, Q, dO and the rows' statistics, and a
// thread for each consumer warpgroup, which adds its dQ to the sums.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward_epilogue.cuh"
#include "cuda/sm90/backward_turn.cuh"

namespace onepass::sm90 {

struct Maps {
  const TensorMap *q, *k, *v, *dout;
};

struct Producer {
  const SharedMemory& memory;
  const Maps& maps;
  const BackwardParams& p;
  const bool issuer = elect_one();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  Pipeline<kLayout.q> q = memory.q();
  Pipeline<kLayout.dout> dout = memory.dout();
  Tiles scheduler{p};

  template <PipelineLayout layout>
  DEV void load(const Pipeline<layout>& to, const TensorMap* map, u32 rows, u32 blocks, i32 token, i32 head, i32 batch,
                u64 hint) const {
#pragma unroll
    for (u32 c = 0; c < blocks; ++c)
      tma_load(to.stage() + c * rows * kBlockColumnBytes, map, to.full(), c * kBlockColumns, token, head, batch, hint);
  }
  // Row blocks travel in two: Q with the LSEs, which are wanted first, and dO with D.
  DEV void load_rows(const KeyTile& tile, const BlockWalk& at) {
    constexpr u32 kBytes = kBlockM * 4;
    const float* const statistics = statistics_of(p, at.place(p, tile.batch));
    const i32 token = tile.q_begin + at.row();
    q.acquire();
    if (issuer) {
      mbar_arrive_expect(q.full(), kLayout.q.bytes + kBytes);
      load(q, maps.q, kBlockM, kQkBlocks, token, at.head, tile.map_batch, kEvictLast);
      bulk_load(memory.lse(q.state.slot), statistics, kBytes, q.full());
    }
    q.advance();
    dout.acquire();
    if (issuer) {
      mbar_arrive_expect(dout.full(), kLayout.dout.bytes + kBytes);
      load(dout, maps.dout, kBlockM, kVBlocks, token, at.head, tile.map_batch, kEvictLast);
      bulk_load(memory.delta(dout.state.slot), statistics + kBlockM, kBytes, dout.full());
    }
    dout.advance();
  }
  // The tile's coordinates travel with K; one that does not exist ends everybody's work.
  DEV void load_k(const KeyTile& tile) {
    k.acquire();
    if (issuer) {
      store_tile(memory.tile(k.state.slot), tile);
      if (!tile.exists()) {
        mbar_arrive(k.full());
      } else {
        mbar_arrive_expect(k.full(), kLayout.k.bytes);
        load(k, maps.k, kBlockN, kQkBlocks, tile.k_begin + tile.key, tile.head, tile.map_batch, kEvictFirst);
      }
    }
    k.advance();
  }
  DEV void load_v(const KeyTile& tile) {
    v.acquire();
    if (issuer) {
      mbar_arrive_expect(v.full(), kLayout.v.bytes);
      load(v, maps.v, kBlockN, kVBlocks, tile.k_begin + tile.key, tile.head, tile.map_batch, kEvictFirst);
    }
    v.advance();
  }
};

// The loads come in the order in which the consumers wait for them.
DEV void produce(const SharedMemory& memory, const Maps& maps, const BackwardParams& p) {
  Producer to{memory, maps, p};
  for (;;) {
    const KeyTile tile = to.scheduler.next();
    if (tile.exists() && tile.m_lo == tile.m_hi) {  // no row sees these keys
      write_no_keys(p, tile);
      continue;
    }
    to.load_k(tile);
    if (!tile.exists()) break;
    BlockWalk at = BlockWalk::of(p, tile);
    to.load_rows(tile, at);
    to.load_v(tile);
    for (at.next(); !at.done(); at.next()) to.load_rows(tile, at);
  }
  to.scheduler.reset();
}

// One thread adds what a warpgroup stages. The fence is the reader's: writers have none in their loop.
DEV void reduce(const SharedMemory& memory, u32 group, const BackwardParams& p) {
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.dq> dq = memory.dq(group);
  for (;;) {
    k.wait();
    const KeyTile tile = load_key_tile(memory.tile(k.state.slot));
    k.release(true);
    if (!tile.exists()) break;
    for (BlockWalk at = BlockWalk::of(p, tile); !at.done(); at.next()) {
      dq.wait();
      async_proxy_fence();
      if constexpr (kDeterministic) {
        Turn::of(p, tile, at).wait();
        async_proxy_fence_global();
      }
      bulk_add(dq_sums_of(p, at.place(p, tile.batch)) + group * (kLayout.dq.bytes / 4), dq.stage(), kLayout.dq.bytes);
      tma_store_commit();
      tma_store_wait_read();
      dq.release(true);
      if constexpr (kDeterministic) {
        tma_store_wait();
        async_proxy_fence_global();
        Turn::of(p, tile, at).pass(kGroupWarps);
      }
    }
  }
  tma_store_wait();  // shared memory must outlive the last sum
}

}  // namespace onepass::sm90
