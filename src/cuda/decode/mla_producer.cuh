// The producer warp of the MLA kernel: tiles of keys by TMA, in the order in which the warpgroups give them back.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/decode/line.cuh"

namespace onepass::decode {

struct MlaProducer {
  const DecodeParams& p;
  const TensorMap* map;
  KeyTiles keys;
  const bool issuer = elect_one();

  // Half h of tile t: `tile` of the sequence. Of pages, each lane loads the rows of one. What lies behind the last key,
  // or in a page that there is not, comes as zeros, and the table is not asked about it.
  DEV void load(const Group& g, i32 tile, u32 t, u32 h) const {
    const KeyValueView view = KeyValueView::of_head(g.work_tile(0), g.kv_head(p));
    const auto copy = [&](const KeyValueView::Place& at, u32 block, u32 row) {
      tma_load(keys.tile(t) + block * kBlockBytes + row * 128, map, keys.full(t, h), block * 64, at.token, view.head,
               at.batch, p.row_blocks == 1 ? kEvictFirst : kEvictLast);
    };
    const auto copy_half = [&](const KeyValueView::Place& at, u32 row) {
#pragma unroll
      for (u32 b = 0; b < kHalfBlocks; ++b) copy(at, h * kHalfBlocks + b, row);
      if (KeyTiles::has_rotary(t, h)) copy(at, kQkBlocks - 1, row);
    };
    keys.acquire(t, h);
    if (issuer) mbar_arrive_expect(keys.full(t, h), KeyTiles::bytes(t, h));
    __syncwarp();
    if constexpr (!features.paged) {
      if (issuer) copy_half(view.place(p, tile * kBlockN), 0);
    } else {
      for (i32 row = static_cast<i32>(threadIdx.x % 32) * config.page_rows; row < kBlockN;
           row += 32 * config.page_rows) {
        const i32 key = tile * kBlockN + row;
        copy_half(key < g.seq_k ? view.place(p, key) : KeyValueView::Place{-1, 0}, row);
      }
      __syncwarp();
    }
  }
  DEV void run() {
    const Line line(p);
    const i32 block = static_cast<i32>(blockIdx.x), end = line.begin_of(block + 1);
    for (Segment s = line.first(line.begin_of(block), end); s.steps != 0; s = line.next(s, end)) {
      const i32 first = s.tile(), last = s.end_tile();
#pragma unroll 1
      for (i32 tile = first; tile < last; tile += 2) {
        load(s.group, tile, 0, 0);
        load(s.group, tile, 0, 1);
        ++keys.uses[0];
        if (tile + 1 >= last) break;
        load(s.group, tile + 1, 1, 1);
        load(s.group, tile + 1, 1, 0);
        ++keys.uses[1];
      }
    }
  }
};

}  // namespace onepass::decode
