// The producer warp: it draws tiles, and loads Q, K, V and their tangents with TMA.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/jvp/sm90/tile.cuh"

namespace onepass::cuda::jvp::sm90 {

struct Producer {
  const SharedMemory& memory;
  const Maps& maps;
  const JvpParams& p;
  const bool issuer = elect_one();
  Pipeline<kLayout.q> q = memory.q();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  Tiles scheduler{p};

  // A tile of `rows` rows from `token` on, `blocks` blocks of columns wide, and its tangent behind it.
  template <u32 blocks, u32 rows, PipelineLayout layout>
  static DEV void load(const Pipeline<layout>& to, const TensorMap& map, const TensorMap& tangent, i32 token, i32 head,
                       i32 batch, u64 hint) {
    mbar_arrive_expect(to.full(), layout.bytes);
    for (u32 c = 0; c < 2 * blocks; ++c)
      tma_load(to.stage() + c * rows * kBlockColumnBytes, c < blocks ? &map : &tangent, to.full(),
               c % blocks * kBlockColumns, token, head, batch, hint);
  }
  // The tile's coordinates travel under the barrier of Q. A tile that does not exist ends the consumers' work.
  DEV void load_q(const WorkTile& tile) {
    q.acquire();
    if (issuer) {
      store_tile(memory.tile(q.state.parity), tile);
      if (tile.exists())
        load<kQkBlocks, kBlockM>(q, maps.q, maps.tq, tile.q_begin + tile.row, tile.head, tile.map_batch, kEvictFirst);
      else
        mbar_arrive(q.full());
    }
    q.advance();
  }
  template <u32 blocks, PipelineLayout layout>
  DEV void load_keys(Pipeline<layout>& to, const TensorMap& map, const TensorMap& tangent, const WorkTile& tile,
                     i32 n) const {
    to.acquire();
    const KeyValueView keys = KeyValueView::of(p, tile);
    const KeyValueView::Place at = keys.place(p, n * kKeys);
    if (issuer) load<blocks, kKeys>(to, map, tangent, at.token, keys.head, at.batch, kEvictLast);
    to.advance();
  }
  DEV void load_k(const WorkTile& tile, i32 n) { load_keys<kQkBlocks>(k, maps.k, maps.tk, tile, n); }
  DEV void load_v(const WorkTile& tile, i32 n) { load_keys<kVBlocks>(v, maps.v, maps.tv, tile, n); }
  // Tiles that see no key are settled here.
  DEV WorkTile next_tile() {
    WorkTile tile = scheduler.next();
    while (tile.exists() && tile.n_lo >= tile.n_hi) {
      write_empty_rows(p, tile, tile.row, kBlockM);
      tile = scheduler.next();
    }
    return tile;
  }
};

// K of a tile's first block comes ahead of its Q, whose memory the tile before still reads.
DEV void produce(const SharedMemory& memory, const Maps& maps, const JvpParams& p) {
  Producer to{memory, maps, p};
  WorkTile tile = to.next_tile();
  while (tile.exists()) {
    i32 n = tile.n_hi - 1;
    to.load_k(tile, n);
    to.load_q(tile);
    to.load_v(tile, n);
    while (n > tile.n_lo) {
      n = next_block<kKeys>(p, tile, n);
      to.load_k(tile, n);
      to.load_v(tile, n);
    }
    tile = to.next_tile();
  }
  to.load_q(tile);
  to.scheduler.reset();
}

}  // namespace onepass::cuda::jvp::sm90
