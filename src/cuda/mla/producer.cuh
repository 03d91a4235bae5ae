// The producer of the MLA kernel: tiles of keys, in the order in which the warpgroups give them back.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/decode/work_partition.cuh"
#include "cuda/device/copy_async.cuh"

namespace onepass::decode {

// A warp that loads boxes by TMA. One lane issues them all, from values that ptxas knows to be the same in all lanes;
// else it makes a loop over the lanes of every box.
struct MlaBoxes {
  const DecodeParams& p;
  const TensorMap* map;
  KeyTiles keys;
  const bool issuer = elect_one();
  KeyValueView::Place found{-1, 0};  // where the page lies that is this lane's to look up

  // Looks up the pages of `tile`. Keys behind the last one, and pages that do not exist, are loaded as zeros without a
  // look-up.
  DEV void look_up(const Group& g, i32 tile) {
    if constexpr (features.paged) {
      const i32 row = static_cast<i32>(threadIdx.x % 32) * config.page_rows, key = tile * kBlockN + row;
      found = {-1, 0};
      if (row < kBlockN && key < g.seq_k) found = KeyValueView::of_head(g.work_tile(0), g.kv_head(p)).entry(p, key);
    }
  }
  // Half h of tile t.
  DEV void load(const Group& g, i32 tile, u32 t, u32 h) const {
    const KeyValueView view = KeyValueView::of_head(g.work_tile(0), g.kv_head(p));
    const auto copy = [&](const KeyValueView::Place& at, u32 block, i32 row) {
      tma_load(keys.tile(t) + block * kBlockBytes + static_cast<u32>(row) * 128, map, keys.full(t, h), block * 64,
               at.token, view.head, at.batch, kEvictFirst);
    };
    const auto copy_half = [&](const KeyValueView::Place& at, i32 row) {
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
      const KeyValueView::Place mine = KeyValueView::checked(p, found);
#pragma unroll 1
      for (i32 i = 0; i < kBlockN / config.page_rows; ++i) {
        const KeyValueView::Place at{__shfl_sync(0xffffffffu, mine.batch, i), __shfl_sync(0xffffffffu, mine.token, i)};
        if (issuer) copy_half(at, i * config.page_rows);
      }
      __syncwarp();
    }
  }
};

// A warpgroup that gathers small pages: 8 lanes take 128 bytes of a key, each thread the chunk of every 16th key. The
// table is asked before the memory is waited for.
struct MlaGather {
  const DecodeParams& p;
  KeyTiles keys;
  const char* from[4] = {};  // null: zeros

  static DEV u32 row(u32 i) { return opaque_thread() % 128 / 8 + 16 * i; }
  DEV void look_up(const Group& g, i32 tile) {
    const KeyValueView view = KeyValueView::of_head(g.work_tile(0), g.kv_head(p));
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const i32 key = tile * kBlockN + static_cast<i32>(row(i));
      from[i] = nullptr;
      if (key >= g.seq_k) continue;
      const KeyValueView::Place at = view.place(p, key);
      if (at.exists())
        from[i] = static_cast<const char*>(p.k) + view.offset(p.k_stride, at) * 2 + opaque_thread() % 8 * 16;
    }
  }
  DEV void load(const Group&, i32, u32 t, u32 h) const {
    keys.acquire(t, h);
    const auto copy_block = [&](u32 b) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
        copy_async<16>(swizzled(keys.tile(t) + b * kBlockBytes, row(i), opaque_thread() % 8),
                       from[i] ? from[i] + b * 128 : static_cast<const char*>(p.k), from[i] != nullptr);
    };
#pragma unroll 1
    for (u32 b = 0; b < kHalfBlocks; ++b) copy_block(h * kHalfBlocks + b);
    if (KeyTiles::has_rotary(t, h)) copy_block(kQkBlocks - 1);
    copies_arrive(keys.full(t, h));
  }
};

// The keys of the block's segments.
template <class Source>
DEV void produce(Source source, const DecodeParams& p) {
  const Line::Stored stored{source.keys.sm + kLayout.line};  // the consumers store the same
  const i32 block = line_block(p);
  Segment s;
  {
    const Line line(p);
    line.store(stored);
    s = line.first(line.begin_of(block), line.begin_of(block + 1));
  }
  const auto next = [&] {
    const Line line(p, stored);
    return line.next(s, line.begin_of(block + 1));
  };
  for (; s.steps != 0; s = next()) {
    const i32 first = s.tile(), last = s.end_tile();
#pragma unroll 1
    for (i32 tile = first; tile < last; tile += 2) {
      source.look_up(s.group, tile);
      source.load(s.group, tile, 0, 0);
      source.load(s.group, tile, 0, 1);
      ++source.keys.uses[0];
      if (tile + 1 >= last) break;
      source.look_up(s.group, tile + 1);
      source.load(s.group, tile + 1, 1, 1);
      source.load(s.group, tile + 1, 1, 0);
      ++source.keys.uses[1];
    }
  }
}

}  // namespace onepass::decode
