// The warp that loads K, V, row blocks with their statistics, and the bias.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward/consumer/pair.cuh"

namespace onepass::sm90 {

struct Maps {
  const TensorMap *q, *k, *v, *dout, *bias, *dbias;
};

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
  DEV void load_rows(const BlockWalk& at, i32 key, i32 q_begin, i32 map_batch, i32 first_block) {
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
      mbar_arrive_expect(dout.full(), kLayout.dout.bytes + kDeltaBytes);
      load(dout, maps.dout, kBlockM, kVBlocks, q_begin + at.row(), at.head, map_batch);
      bulk_load(memory.delta(dout.state.slot), statistics + kBlockM, kDeltaBytes, dout.full());
    }
    if constexpr (config.bias_tiles) load_bias(at, key, map_batch);
    ++blocks;
  }
  // Into the place of the block's dS, when dQ of two blocks before has been computed from it: one dS that two
  // warpgroups write. Asked for before that, so that it has come to L2.
  DEV void load_bias(const BlockWalk& at, i32 key, i32 batch) const {
    const auto each = [&](const auto& box) {
#pragma unroll
      for (u32 c = 0; c < kBlockN / kBlockColumns; ++c)
        box(c * kBlockM * kBlockColumnBytes, key + static_cast<i32>(c * kBlockColumns));
    };
    if (issuer) each([&](u32, i32 column) { tma_prefetch(maps.bias, column, at.row(), at.head, batch); });
    memory.ds().at(blocks).acquire();
    const Pipeline<kLayout.bias> bias = memory.bias().at(blocks);
    if (!issuer) return;
    mbar_arrive_expect(bias.full(), kLayout.bias.bytes);
    each([&](u32 to, i32 column) {
      tma_load(bias.stage() + to, maps.bias, bias.full(), column, at.row(), at.head, batch);
    });
  }
  DEV void ask_next() const { warp_arrive(memory.schedule().at(tiles).empty(), issuer); }
  DEV void load_k(const KeyTile& x) const {  // its stage is free since the tile has come
    if (!issuer) return;
    const Pipeline<kLayout.k> k = memory.k().at(tiles);
    if (!x.exists()) return mbar_arrive(k.full());
    mbar_arrive_expect(k.full(), kLayout.k.bytes);
    load(k, maps.k, kBlockN, kQkBlocks, x.k_begin + x.key, x.head, x.map_batch);
    if constexpr (kPaired) {
#pragma unroll
      for (u32 c = 0; c < kPartnerBlocks; ++c)
        tma_load(k.stage() + own_keys_bytes(features, config) + c * kBlockN * kBlockColumnBytes, maps.k, k.full(),
                 (pair_rank() + c) * kBlockColumns, x.k_begin + partner_key(x.key), x.head, x.map_batch);
    }
  }
  DEV void load_v(const KeyTile& x) const {
    const Pipeline<kLayout.v> v = memory.v().at(tiles);
    v.acquire();
    if (!issuer) return;
    mbar_arrive_expect(v.full(), kLayout.v.bytes);
    load(v, maps.v, kBlockN, kVBlocks, x.k_begin + x.key, x.head, x.map_batch);
  }
};

// The loads come in the order in which the consumers wait for them.
DEV void produce(const SharedMemory& memory, const Maps& maps, const BackwardParams& p) {
  for (Producer to{memory, maps, p};; ++to.tiles) {
    memory.schedule().at(to.tiles).wait();
    const KeyTile x = load_key_tile(memory.tile(to.tiles % kLayout.k.stages));
    to.load_k(x);
    if (!x.exists()) break;
    const u32 slot = memory.tile(to.tiles % kLayout.k.stages);
    BlockWalk at = BlockWalk::of(p, x, slot);
    const i32 first = first_q_block(p, x.batch), q_begin = features.packed ? x.q_begin : 0,
              map_batch = features.packed ? 0 : x.batch;
    bool has_v = false;
    do {
      if (at.last()) to.ask_next();
      to.load_rows(at, x.key, q_begin, map_batch, first);
      if (!has_v) to.load_v(load_key_tile(slot));
      has_v = true;
    } while (at.next(p, slot));
  }
}

}  // namespace onepass::sm90
