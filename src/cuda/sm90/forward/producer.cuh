// The producer warp: it draws tiles and loads Q, K, V and the bias with TMA.
#pragma once
#include "cuda/device/order.cuh"
#include "cuda/device/tma.cuh"

#include "cuda/attention/descale.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/key_value_view.cuh"
#include "cuda/sm90/forward/tile.cuh"

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
  Pipeline<kLayout.incoming> incoming = memory.incoming();
  Pipeline<kLayout.bias> bias = memory.bias(0);
  float largest_v = 1.0f;  // factor of V in the tile's head, where its blocks have their own
  Tiles scheduler{p};
  i32 asked = -1;  // block of the tile that `ahead` is about; -1: none
  KeyValueView::Place ahead{-1, 0};

  // `blocks` blocks of 128 bytes of columns of the rows from `token` on into a stage.
  template <u32 columns, PipelineLayout layout>
  DEV void load(const Pipeline<layout>& to, const TensorMap* map, u32 rows, u32 blocks, i32 token, i32 head, i32 batch,
                u64 hint) const {
    if (!issuer) return;
    mbar_arrive_expect(to.full(), blocks * rows * kBlockColumnBytes);
    for (u32 c = 0; c < blocks; ++c)
      tma_load(to.stage() + c * rows * kBlockColumnBytes, map, to.full(), c * columns, token, head, batch, hint);
  }
  // Where the keys of a page lie that this lane loads, as the table has it. What lies behind the last key is not asked
  // for and comes as zeros.
  static constexpr i32 kPagesOfBlock = features.paged ? kKeys / config.page_rows : 0;
  static DEV i32 lane_row() { return static_cast<i32>(threadIdx.x % 32) * config.page_rows; }
  DEV KeyValueView::Place find(const WorkTile& tile, i32 n) const {
    const i32 key = n * kKeys + lane_row();
    if (!features.paged || lane_row() >= kKeys || key >= tile.seq_k) return {-1, 0};
    return KeyValueView::of(p, tile).entry(p, key);
  }
  // A block of keys, page by page. One lane issues all boxes, from values that ptxas knows to be the same in all lanes:
  // where they differ, it makes a loop over the lanes of each load, and a box takes 33 ns instead of under 20.
  template <PipelineLayout layout>
  DEV void load_keys(const Pipeline<layout>& to, const TensorMap* map, u32 blocks, const WorkTile& tile, i32 n,
                     const KeyValueView::Place& found) const {
    const KeyValueView keys = KeyValueView::of(p, tile);
    if constexpr (!features.paged) {
      const KeyValueView::Place at = keys.place(p, n * kKeys);
      return load<kKeyColumns>(to, map, kBlockN, blocks, at.token, keys.head, at.batch, kEvictLast);
    }
    const KeyValueView::Place mine = KeyValueView::checked(p, found);
    if (issuer) mbar_arrive_expect(to.full(), blocks * kBlockN * kBlockColumnBytes);
#pragma unroll(config.whole_pages ? kPagesOfBlock : 4)
    for (i32 i = 0; i < kPagesOfBlock; ++i) {
      const i32 page = __shfl_sync(0xffffffffu, mine.batch, i),
                token = config.whole_pages ? 0 : __shfl_sync(0xffffffffu, mine.token, i);
      if (!issuer) continue;
      for (u32 c = 0; c < blocks; ++c)
        tma_load(to.stage() + (c * kBlockN + static_cast<u32>(i) * config.page_rows) * kBlockColumnBytes, map,
                 to.full(), c * kKeyColumns, token, keys.head, page, kEvictLast);
    }
    __syncwarp();
  }
  struct Block {  // of keys, as load_k finds it and load_v takes it
    KeyValueView::Place found{-1, 0};
    float v_share = 1.0f;  // V's factor against the largest of its head
  };
  // Returns where the block's keys lie. The table is asked about the block after it meanwhile: an
  // answer is 600 ns on its way, a block's time is 1.4 us, and it would stand between a stage's release and its loads.
  DEV Block load_k(const WorkTile& tile, i32 n) {
    if (n == tile.n_hi - 1) open_factors(tile);
    Block block{features.paged && n == asked ? ahead : find(tile, n)};
    if constexpr (kFp8Keys) {
      float k_share = 1.0f;
      if constexpr (config.block_scales) {
        const i32 head = KeyValueView::of(p, tile).head, of = n * kKeys / kDescaleRows;
        k_share = k_factor(p, tile.batch, head, of);
        block.v_share = v_factor(p, tile.batch, head, of) / largest_v;
      }
      load_incoming(maps.k, kIncomingK, kIncomingQkBlocks, tile, n, block.found, k_share);
    } else {
      k.acquire();
      if constexpr (config.block_scales) store_scales(tile, n);
      load_keys(k, maps.k, kQkBlocks, tile, n, block.found);
      k.advance();
    }
    if constexpr (features.paged) {
      asked = n > tile.n_lo ? n - 1 : -1;
      if (asked >= 0) ahead = find(tile, asked);
    }
    return block;
  }
  DEV void load_v(const WorkTile& tile, i32 n, const Block& block) {
    if constexpr (kFactors) {
      load_incoming(maps.v, kIncomingV, kIncomingVBlocks, tile, n, block.found, block.v_share);
    } else {
      v.acquire();
      load_keys(v, maps.v, kVBlocks, tile, n, block.found);
      v.advance();
    }
  }
  // For the helpers.
  DEV void load_incoming(const TensorMap* map, IncomingTile what, u32 blocks, const WorkTile& tile, i32 n,
                         const KeyValueView::Place& found, float share) {
    incoming.acquire();
    if (issuer) {
      store_word(memory.more(incoming.state.slot), what);
      if constexpr (kFp8Keys && config.block_scales)
        store_word(memory.more(incoming.state.slot) + 4, __float_as_int(share));
    }
    load_keys(incoming, map, blocks, tile, n, found);
    incoming.advance();
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
                   n * kKeys + c * kColumns, tile.row + static_cast<i32>(g / kVGroups) * kGroupRows, tile.head,
                   tile.batch, kEvictFirst);
      }
      bias.advance();
    }
  }
  // Ahead of a tile's first block of keys.
  DEV void open_factors(const WorkTile& tile) {
    if constexpr (config.block_scales)
      largest_v = largest_v_factor(p, tile.batch, KeyValueView::of(p, tile).head, ceil_div(tile.seq_k, kDescaleRows));
  }
  // A block's share of the factor of its scores, and log2 of V's factor against the largest of its head.
  DEV void store_scales(const WorkTile& tile, i32 n) const {
    const i32 head = KeyValueView::of(p, tile).head, block = n * kKeys / kDescaleRows;
    if (issuer)
      store_pair(memory.scales(k.state.slot), k_factor(p, tile.batch, head, block),
                 fmaxf(exponent_of(v_factor(p, tile.batch, head, block)) - exponent_of(largest_v), -64.0f));
  }
  // Stores the factors of a tile's scores and of its O.
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
  // The end of the helpers' work.
  DEV void no_more() {
    incoming.acquire();
    if (!issuer) return;
    store_word(memory.more(incoming.state.slot), kNothing);
    mbar_arrive(incoming.full());
  }
  // The tile's coordinates travel in shared memory under the Q barrier: consumers need no divisions. A tile that does
  // not exist ends their work.
  DEV void load_q(const WorkTile& tile) {
    q.acquire();
    if (issuer) store_tile(memory.tile(q.state.slot), tile);
    if constexpr (kFactors) {
      if (tile.exists()) store_factors(tile);
    }
    if (!tile.exists()) {
      if (issuer) mbar_arrive(q.full());
    } else {
      load<kInputColumns>(q, maps.q, kBlockM, kQkBlocks, tile.q_begin + tile.row, tile.head, tile.map_batch,
                          kEvictFirst);
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
  Producer::Block block, later;  // whose K has been loaded
  if (tile.exists()) block = to.load_k(tile, tile.n_hi - 1);
  to.load_q(tile);
  if (tile.exists()) to.load_bias(tile, tile.n_hi - 1);
  while (tile.exists()) {
    for (i32 n = tile.n_hi - 1; n > tile.n_lo;) {
      const i32 next = next_block<kKeys>(p, tile, n);
      later = to.load_k(tile, next);
      to.load_v(tile, n, block);
      to.load_bias(tile, next);
      n = next, block = later;
    }
    const WorkTile next = to.next_tile();
    if (!config.cross_tile) to.load_v(tile, tile.n_lo, block);
    if (next.exists()) later = to.load_k(next, next.n_hi - 1);
    to.load_q(next);
    if (config.cross_tile) to.load_v(tile, tile.n_lo, block);
    if (next.exists()) to.load_bias(next, next.n_hi - 1);
    tile = next, block = later;
  }
  if constexpr (kFactors) to.no_more();
  to.scheduler.reset();
  if constexpr (features.shared()) {
    if (p.concurrent) wait_for_kernel_before();  // this kernel's end is the end of both
  }
}

}  // namespace onepass::sm90
