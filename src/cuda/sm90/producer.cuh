// The producer warp: it draws tiles and loads Q, K, V and the bias with TMA.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/attention/descale.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/key_value_view.cuh"
#include "cuda/sm90/forward_tile.cuh"

namespace onepass::sm90 {

struct Maps {
  const TensorMap *q, *k, *v, *bias;
};

struct Producer {
  const SharedMemory& memory;
  const Maps& maps;
  const ForwardParams& p;
  const bool issuer = elect_one();
  Pipeline<kLayout.q> q = memory.q();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  Pipeline<kLayout.raw> raw = memory.raw();
  Pipeline<kLayout.bias> bias = memory.bias(0);
  float largest_v = 1.0f;  // factor of V in the tile's head, where its blocks have their own
  Tiles scheduler{p};

  // `blocks` blocks of 64 columns of the rows from `token` on into a stage.
  template <PipelineLayout layout>
  DEV void load(const Pipeline<layout>& to, const TensorMap* map, u32 rows, u32 blocks, i32 token, i32 head, i32 batch,
                u64 hint) const {
    if (!issuer) return;
    mbar_arrive_expect(to.full(), layout.bytes);
    for (u32 c = 0; c < blocks; ++c)
      tma_load(to.stage() + c * rows * kBlockColumnBytes, map, to.full(), c * kInputColumns, token, head, batch, hint);
  }
  // A block of keys; of pages, each lane loads the rows of one. What lies behind the last key, or in a page that there
  // is not, comes as zeros, and the table is not asked about it.
  template <PipelineLayout layout>
  DEV void load_keys(const Pipeline<layout>& to, const TensorMap* map, u32 blocks, const WorkTile& tile, i32 n) const {
    const KeyValueView keys = KeyValueView::of(p, tile);
    if constexpr (!features.paged) {
      const KeyValueView::Place at = keys.place(p, n * kKeys);
      return load(to, map, kBlockN, blocks, at.token, keys.head, at.batch, kEvictLast);
    }
    if (issuer) mbar_arrive_expect(to.full(), layout.bytes);
    const i32 row = static_cast<i32>(threadIdx.x % 32) * config.page_rows, key = n * kKeys + row;
    if (row < kKeys) {
      KeyValueView::Place at{-1, 0};
      if (key < tile.seq_k) at = keys.place(p, key);
      for (u32 c = 0; c < blocks; ++c)
        tma_load(to.stage() + (c * kBlockN + static_cast<u32>(row)) * kBlockColumnBytes, map, to.full(),
                 c * kInputColumns, at.token, keys.head, at.batch, kEvictLast);
    }
    __syncwarp();
  }
  DEV void load_k(const WorkTile& tile, i32 n) {
    if (n == tile.n_hi - 1) open_factors(tile);
    k.acquire();
    if constexpr (config.block_scales) store_scales(tile, n);
    load_keys(k, maps.k, kQkBlocks, tile, n);
    k.advance();
  }
  DEV void load_v(const WorkTile& tile, i32 n) {
    if constexpr (kFp8) {
      raw.acquire();
      if (issuer) store_word(memory.more(raw.state.slot), 1);
      load_keys(raw, maps.v, kVBlocks, tile, n);
      raw.advance();
      return;
    }
    v.acquire();
    load_keys(v, maps.v, kVBlocks, tile, n);
    v.advance();
  }
  DEV void load_bias(const WorkTile& tile, i32 n) {
    if constexpr (kBiasTiles) {
      constexpr i32 kColumns = features.bias == ScalarType::f32 ? kBlockColumns / 2 : kBlockColumns;
      for (u32 g = 0; g < kGroups; ++g) {  // a part of its own for each warpgroup: neither waits for the other
        bias.part = g;
        bias.acquire();
        if (!issuer) continue;
        mbar_arrive_expect(bias.full(), kLayout.bias.bytes);
        for (i32 c = 0; c < kKeys / kColumns; ++c)
          tma_load(bias.stage() + static_cast<u32>(c) * kGroupBlockBytes, maps.bias, bias.full(),
                   n * kKeys + c * kColumns, tile.row + static_cast<i32>(g) * kGroupRows, tile.head, tile.batch,
                   kEvictFirst);
      }
      bias.advance();
    }
  }
  // Ahead of a tile's first block of keys.
  DEV void open_factors(const WorkTile& tile) {
    if constexpr (config.block_scales)
      largest_v = largest_v_factor(p, tile.batch, KeyValueView::of(p, tile).head,
                                   (tile.seq_k + kDescaleRows - 1) / kDescaleRows);
  }
  // A block's share of the factor of its scores, and log2 of V's factor against the largest of its head.
  DEV void store_scales(const WorkTile& tile, i32 n) const {
    const i32 head = KeyValueView::of(p, tile).head, block = n * kKeys / kDescaleRows;
    if (issuer)
      store_pair(memory.scales(k.state.slot), k_factor(p, tile.batch, head, block),
                 fmaxf(exponent_of(v_factor(p, tile.batch, head, block)) - exponent_of(largest_v), -64.0f));
  }
  // What a tile's scores and its O are multiplied with.
  DEV void store_factors(const WorkTile& tile) const {
    if (!issuer) return;
    const i32 head = KeyValueView::of(p, tile).head;
    const float k_whole = config.block_scales ? 1.0f : k_factor(p, tile.batch, head, 0);
    const auto of_group = [&](i32 group) {
      return k_whole * q_factor(p, tile.batch, tile.head, min(tile.row + group * kGroupRows, tile.seq_q - 1));
    };
    const float v_whole = config.block_scales ? largest_v : v_factor(p, tile.batch, head, 0);
    store_four(memory.factors(q.state.slot), __float_as_int(of_group(0)), __float_as_int(of_group(1)),
               __float_as_int(of_group(2)), __float_as_int(v_whole));
  }
  // The end of the transposing warps' work.
  DEV void no_more_v() {
    raw.acquire();
    if (!issuer) return;
    store_word(memory.more(raw.state.slot), 0);
    mbar_arrive(raw.full());
  }
  // The tile's coordinates travel in shared memory under the Q barrier: consumers need no divisions. A tile that does
  // not exist ends their work.
  DEV void load_q(const WorkTile& tile) {
    q.acquire();
    if (issuer) store_tile(memory.tile(q.state.slot), tile);
    if constexpr (kFp8) {
      if (tile.exists()) store_factors(tile);
    }
    if (!tile.exists()) {
      if (issuer) mbar_arrive(q.full());
    } else {
      load(q, maps.q, kBlockM, kQkBlocks, tile.q_begin + tile.row, tile.head, tile.map_batch, kEvictFirst);
    }
    q.advance();
  }
  // Tiles that see no key are settled here; the others go to the consumers.
  DEV WorkTile next_tile() {
    WorkTile tile = scheduler.next();
    while (tile.exists() && tile.n_lo >= tile.n_hi) {
      write_empty(p, tile, tile.row, kBlockM);
      tile = scheduler.next();
    }
    return tile;
  }
};

// The loads come in the order in which the consumers wait for them.
DEV void produce(const SharedMemory& memory, const Maps& maps, const ForwardParams& p) {
  Producer to{memory, maps, p};
  WorkTile tile = to.next_tile();
  if (tile.exists()) to.load_k(tile, tile.n_hi - 1);
  to.load_q(tile);
  if (tile.exists()) to.load_bias(tile, tile.n_hi - 1);
  while (tile.exists()) {
    for (i32 n = tile.n_hi - 1; n > tile.n_lo;) {
      const i32 next = next_block<kKeys>(p, tile, n);
      to.load_k(tile, next);
      to.load_v(tile, n);
      to.load_bias(tile, next);
      n = next;
    }
    const WorkTile next = to.next_tile();
    if (!config.cross_tile) to.load_v(tile, tile.n_lo);
    if (next.exists()) to.load_k(next, next.n_hi - 1);
    to.load_q(next);
    if (config.cross_tile) to.load_v(tile, tile.n_lo);
    if (next.exists()) to.load_bias(next, next.n_hi - 1);
    tile = next;
  }
  if constexpr (kFp8) to.no_more_v();
  to.scheduler.reset();
}

}  // namespace onepass::sm90
