// Constants of the config, the map of shared memory, and the walk through a tile's blocks.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/attention/tile_orders.cuh"
#include "cuda/sm90/backward_config.hpp"

namespace onepass::sm90 {

constexpr BackwardLayout kLayout = layout_of(backward_features, config);
constexpr u32 kBlockM = config.block_m;
constexpr bool kByRows = kBlockM == 128;  // how the warpgroups share dQ
constexpr u32 kQkBlocks = column_blocks(features.dim_qk), kVBlocks = column_blocks(features.dim_v);
constexpr u32 kQkN = padded(features.dim_qk, 16), kVN = padded(features.dim_v, 16);  // columns of dK, of dV
constexpr u32 kDqN = dq_columns(backward_features, config);
constexpr i32 kDqFloats = dq_block_floats(backward_features, config);
constexpr u32 kGroupThreads = 128, kGroupWarps = 4, kGroups = 2, kConsumerWarps = kGroups * kGroupWarps;
using Tiles = TileScheduler<KeysOuter<static_cast<i32>(kBlockM), kTileKeys>>;

struct SharedMemory {
  u32 base;
  DEV Pipeline<kLayout.k> k() const { return {base}; }  // [columns / 64][128 keys][128 bytes]
  DEV Pipeline<kLayout.v> v() const { return {base}; }
  DEV Pipeline<kLayout.q> q() const { return {base}; }  // [columns / 64][block_m][128 bytes]
  DEV Pipeline<kLayout.dout> dout() const { return {base}; }
  DEV Pipeline<kLayout.ds> ds() const { return {base}; }
  DEV Pipeline<kLayout.dq> dq(u32 group) const { return {base, group}; }
  DEV u32 lse(u32 slot) const { return base + kLayout.lse + slot * kBlockM * 4; }
  DEV u32 delta(u32 slot) const { return base + kLayout.delta + slot * kBlockM * 4; }
  DEV u32 tile(u32 slot) const { return base + kLayout.tiles + kTileSlotBytes * slot; }  // a KeyTile
};

DEV void store_tile(u32 to, const KeyTile& x) {
  store_four(to, x.key, x.head, x.batch, x.map_batch);
  store_four(to + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  store_four(to + 32, x.m_lo, x.m_hi, x.number, 0);
}
DEV KeyTile load_key_tile(u32 from) {
  KeyTile x;
  i32 unused;
  load_four(from, x.key, x.head, x.batch, x.map_batch);
  load_four(from + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  load_four(from + 32, x.m_lo, x.m_hi, x.number, unused);
  return x;
}

// The blocks of a tile in their order: of each query head that shares its keys, the row blocks that see any of them.
struct BlockWalk {
  i32 m = 0, m_lo = 0, m_hi = 0, head = 0, head_end = 0;
  static DEV BlockWalk of(const AttentionParams& p, const KeyTile& x) {
    return {x.m_lo, x.m_lo, x.m_hi, x.head * p.heads_per_kv, (x.head + 1) * p.heads_per_kv};
  }
  DEV bool done() const { return head == head_end; }
  DEV bool last() const { return m + 1 == m_hi && head + 1 == head_end; }
  DEV void next() {
    if (++m == m_hi) m = m_lo, ++head;
  }
};

// Row blocks as statistics and the sums of dQ count them: heads outermost; packed sequences begin where blocks do.
DEV i32 row_block(const BackwardParams& p, const KeyTile& x, i32 head, i32 m) {
  if constexpr (features.packed)
    return head * p.row_blocks + x.q_begin / static_cast<i32>(kBlockM) + x.batch + m;
  else
    return head * p.row_blocks + x.batch * p.m_tiles + m;
}

}  // namespace onepass::sm90
