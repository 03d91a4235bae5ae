// The helpers' warpgroup: a warp that draws tiles, one that loads K, V, Q, dO and the rows' statistics, and a thread
// for each consumer warpgroup, which adds its dQ to the sums.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward_epilogue.cuh"
#include "cuda/sm90/backward_turn.cuh"

namespace onepass::sm90 {

struct Maps {
  const TensorMap *q, *k, *v, *dout;
};

// Draws tiles; one that does not exist ends everybody's work. A warp of its own: the helpers have 24 registers. A tile
// is drawn when the rows of the last block of the one before are asked for, some three blocks before its end: early
// enough for its K, and late enough that work goes where there is time for it. (Drawn when the one before begins, the
// last tiles wait behind long ones: 1.17 of the time for 32/8 heads of 4k rows, causally, by a model of 132
// multiprocessors.)
DEV void schedule(const SharedMemory& memory, const BackwardParams& p) {
  Tiles scheduler{p};
  for (u32 tiles = 0;;) {
    if (tiles != 0) memory.schedule().at(tiles - 1).wait_released();
    const KeyTile x = scheduler.next();
    if (x.exists() && x.m_lo == x.m_hi) {  // no row sees these keys
      write_no_keys(p, x);
      continue;
    }
    memory.k().at(tiles).acquire();
    const Pipeline<kLayout.schedule> to = memory.schedule().at(tiles++);
    if (threadIdx.x % 32 == 0) {
      store_tile(to.stage(), x);
      mbar_arrive(to.full());
    }
    if (!x.exists()) break;
  }
  scheduler.reset();
}

struct Producer {
  const SharedMemory& memory;
  const Maps& maps;
  const BackwardParams& p;
  const bool issuer = elect_one();
  u32 tiles = 0, blocks = 0;

  template <PipelineLayout layout>
  DEV void load(const Pipeline<layout>& to, const TensorMap* map, u32 rows, u32 columns, i32 token, i32 head,
                i32 batch) const {
#pragma unroll
    for (u32 c = 0; c < columns; ++c)
      tma_load(to.stage() + c * rows * kBlockColumnBytes, map, to.full(), c * kBlockColumns, token, head, batch);
  }
  // Row blocks travel in two: Q with the LSEs, which are wanted first, and dO with D.
  DEV void load_rows(const BlockWalk& at, i32 q_begin, i32 map_batch, i32 first_block) {
    constexpr u32 kBytes = kBlockM * 4;
    const SharedMemory memory{opaque(this->memory.base)};  // addresses are worked out here, not kept
    const float* const statistics = statistics_of(p, place_of(p, at.head, first_block + at.m));
    const Pipeline<kLayout.q> q = memory.q().at(blocks);
    q.acquire();
    if (issuer) {
      mbar_arrive_expect(q.full(), kLayout.q.bytes + kBytes);
      load(q, maps.q, kBlockM, kQkBlocks, q_begin + at.row(), at.head, map_batch);
      bulk_load(memory.lse(q.state.slot), statistics, kBytes, q.full());
    }
    const Pipeline<kLayout.dout> dout = memory.dout().at(blocks);
    dout.acquire();
    if (issuer) {
      mbar_arrive_expect(dout.full(), kLayout.dout.bytes + kBytes);
      load(dout, maps.dout, kBlockM, kVBlocks, q_begin + at.row(), at.head, map_batch);
      bulk_load(memory.delta(dout.state.slot), statistics + kBlockM, kBytes, dout.full());
    }
    ++blocks;
  }
  DEV void ask_next() const { warp_arrive(memory.schedule().at(tiles).empty(), issuer); }
  DEV void load_k(const KeyTile& x) const {  // its stage is free since the tile has come
    if (!issuer) return;
    const Pipeline<kLayout.k> k = memory.k().at(tiles);
    if (!x.exists()) return mbar_arrive(k.full());
    mbar_arrive_expect(k.full(), kLayout.k.bytes);
    load(k, maps.k, kBlockN, kQkBlocks, x.k_begin + x.key, x.head, x.map_batch);
  }
  DEV void load_v(i32 token, i32 head, i32 map_batch) const {
    const Pipeline<kLayout.v> v = memory.v().at(tiles);
    v.acquire();
    if (!issuer) return;
    mbar_arrive_expect(v.full(), kLayout.v.bytes);
    load(v, maps.v, kBlockN, kVBlocks, token, head, map_batch);
  }
};

// The loads come in the order in which the consumers wait for them.
DEV void produce(const SharedMemory& memory, const Maps& maps, const BackwardParams& p) {
  for (Producer to{memory, maps, p};; ++to.tiles) {
    memory.schedule().at(to.tiles).wait();
    const KeyTile x = load_key_tile(memory.tile(to.tiles % kLayout.k.stages));
    to.load_k(x);
    if (!x.exists()) break;
    BlockWalk at = BlockWalk::of(p, x);
    const i32 first = first_q_block(p, x.batch), q_begin = features.packed ? x.q_begin : 0,
              map_batch = features.packed ? 0 : x.batch;
    const auto load_rows = [&] {
      if (at.last()) to.ask_next();
      to.load_rows(at, q_begin, map_batch, first);
    };
    load_rows();
    to.load_v(x.k_begin + x.key, x.head, map_batch);
    while (at.next(p)) load_rows();
  }
}

// Adds what a warpgroup stages; one thread of a warp does. The fence is the reader's: writers have none in their loop.
DEV void reduce(const SharedMemory& memory, u32 group, const BackwardParams& p) {
  const bool issuer = elect_one();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.dq> dq = memory.dq(group);
  for (;;) {
    k.wait();
    const KeyTile tile = load_key_tile(memory.tile(k.state.slot));
    if (!tile.exists()) break;
    BlockWalk at = BlockWalk::of(p, tile);
    do {
      const i32 place = static_cast<i32>(at.place(p, tile.batch));
      dq.wait();
      if (issuer) {
        async_proxy_fence();
        if constexpr (kDeterministic) {
          wait_for_count(p.turns + place, counts_before(band_of(p, tile.seq_q, tile.seq_k), tile.key, at));
          async_proxy_fence_global();
        }
        bulk_add(dq_sums_of(p, place) + group * (kLayout.dq.bytes / 4), dq.stage(), kLayout.dq.bytes);
        tma_store_commit();
        tma_store_wait_read();
      }
      dq.release(issuer);
      if constexpr (kDeterministic) {
        if (issuer) {
          tma_store_wait();
          async_proxy_fence_global();
          add_release(p.turns + place, kGroupWarps);
        }
      }
      __syncwarp();
    } while (at.next(p));
    k.release(issuer);
  }
  if (issuer) tma_store_wait();  // shared memory must outlive the last sum
}

}  // namespace onepass::sm90
