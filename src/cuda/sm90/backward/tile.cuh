// Constants of the config, the map of shared memory, and the walk through a tile's blocks.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/attention/backward/tile.cuh"
#include "cuda/sm90/backward/config.hpp"

namespace onepass::sm90 {

constexpr BackwardLayout kLayout = layout_of(backward_features, config);
constexpr u32 kBlockM = config.block_q, kBlockN = config.block_k();
constexpr bool kByRows = kBlockM == 128;  // how the warpgroups share dQ
constexpr u32 kQkBlocks = column_blocks(features.dim_qk), kVBlocks = column_blocks(features.dim_v);
constexpr u32 kQkN = round_up(features.dim_qk, 16), kVN = round_up(features.dim_v, 16);  // columns of dK, of dV
template <u32 group>
constexpr u32 kDqN = config.paired ? kPairedColumns[group] : dq_columns(features.dim_qk, config.block_q, group);
template <u32 group>
constexpr u32 kDqBytes = 64 * kDqN<group> * 4;  // of a warpgroup's share of a block
constexpr u32 kGroupThreads = 128, kGroupWarps = 4, kGroups = 2, kConsumerWarps = kGroups * kGroupWarps;
constexpr u32 kDeltaBytes =
    (backward_features.statistics() - 1) * kBlockM * 4;  // of a block's D, and what goes with it
constexpr bool kDeterministic = backward_features.deterministic;
static_assert(kBlockQ == kBlockM && backward_shape.sum_columns * kBlockM == dq_block_floats(features.dim_qk, kBlockM));
using TileOrder = KeysOuter<static_cast<i32>(kBlockM), config.tile_k(), kDeterministic>;

struct SharedMemory {
  u32 base;
  DEV Pipeline<kLayout.k> k() const { return {base}; }  // [columns / 64][block_k][128 bytes]
  DEV Pipeline<kLayout.v> v() const { return {base}; }
  DEV Pipeline<kLayout.q> q() const { return {base}; }  // [columns / 64][block_q][128 bytes]
  DEV Pipeline<kLayout.dout> dout() const { return {base}; }
  DEV Pipeline<kLayout.ds> ds() const { return {base}; }
  DEV Pipeline<kLayout.bias> bias() const { return {base}; }
  DEV Pipeline<kLayout.dq> dq(u32 group) const { return {base, group}; }
  DEV Pipeline<kLayout.order> order() const { return {base}; }
  DEV Pipeline<kLayout.partner> partner() const { return {base}; }
  DEV Pipeline<kLayout.drawn> drawn() const { return {base}; }
  DEV Pipeline<kLayout.exchange> exchange(u32 warp) const { return {base, warp}; }
  DEV u32 lse(u32 slot) const { return base + kLayout.lse + slot * kBlockM * 4; }
  // D, and behind it the gradients of entropies.
  DEV u32 delta(u32 slot) const { return base + kLayout.delta + slot * kDeltaBytes; }
  DEV Pipeline<kLayout.schedule> schedule() const { return {base}; }  // from the scheduler's warp to the producer's
  DEV u32 row_bits() const { return base + kLayout.row_bits; }
  DEV u32 marked() const { return base + kLayout.marked; }
  DEV u32 tile(u32 slot) const { return base + kLayout.schedule.data + kLayout.schedule.bytes * slot; }
};

DEV void store_tile(u32 to, const KeyTile& x) {
  store_four(to, x.key, x.head, x.batch, x.map_batch);
  store_four(to + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  store_four(to + 32, x.m_lo, x.m_hi, x.number, x.upwards);
}
DEV KeyTile load_key_tile(u32 from) {
  KeyTile x;
  i32 upwards;
  load_four(from, x.key, x.head, x.batch, x.map_batch);
  load_four(from + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  load_four(from + 32, x.m_lo, x.m_hi, x.number, upwards);
  x.upwards = upwards != 0;
  return x;
}

// True if blocks of rows that a boolean mask hides from all keys of a tile are skipped.
constexpr bool kLeavesOut = features.bool_mask;
static_assert(!features.bool_mask || kBlockM == 64);  // rows of the packed mask's tiles
DEV u32 list_word(u32 slot, i32 m) {
  return m < 32 * kListWords ? static_cast<u32>(load_word(slot + kTileSlotBytes + m / 32 * 4)) : ~0u;
}

// The blocks of a tile in their order: of each block of rows that sees any of its keys, the query heads that share the
// keys. So neighbouring tiles are at the same rows of all of them, and find Q, dO and sums of dQ in L2.
struct BlockWalk {
  i32 m = 0, m_last = 0, head = 0, heads_left = 0;  // behind this one
  u32 list = 0;  // kLeavesOut: bits of this block and those behind it, of 32; read again where a register is too much

  DEV i32 step() const { return !kDeterministic || m < m_last ? 1 : -1; }
  // slot: where the tile lies in shared memory.
  static DEV BlockWalk of(const AttentionParams& p, const KeyTile& x, u32 slot) {
    BlockWalk at = {x.upwards ? x.m_hi - 1 : x.m_lo, x.upwards ? x.m_lo : x.m_hi - 1, x.head * p.heads_per_kv,
                    p.heads_per_kv - 1};
    if constexpr (kLeavesOut && !config.split) at.list = listed_from(slot, at.m, at.step());
    return at;
  }
  DEV bool last() const { return m == m_last && heads_left == 0; }
  // True if the next block belongs to another head.
  DEV bool head_ends(const AttentionParams& p) const { return p.heads_per_kv > 1 || m == m_last; }
  // False behind the last block.
  DEV bool next(const AttentionParams& p, u32 slot) {
    if (heads_left != 0) {
      --heads_left;
      ++head;
      return true;
    }
    heads_left = p.heads_per_kv - 1;
    head -= heads_left;
    if (m == m_last) return false;
    if constexpr (kLeavesOut)
      next_listed(slot);
    else
      m += m < m_last ? 1 : -1;
    return true;
  }
  // Bits of block m and those behind it, of its 32.
  static DEV u32 listed_from(u32 slot, i32 m, i32 step) {
    const u32 word = list_word(slot, m);
    return step > 0 ? word >> m % 32 : __brev(word) >> (31 - m % 32);
  }
  // The last block is listed, so there is one.
  DEV void next_listed(u32 slot) {
    const i32 step = this->step();
    if constexpr (config.split) list = listed_from(slot, m, step);
    list >>= 1;
    m += step;
    if (m % 32 == (step > 0 ? 0 : 31)) list = listed_from(slot, m, step);
    for (; list == 0; list = listed_from(slot, m, step)) m = step > 0 ? (m / 32 + 1) * 32 : m / 32 * 32 - 1;
    const i32 skipped = __ffs(static_cast<int>(list)) - 1;
    m += step * skipped;
    list >>= skipped;
  }
  DEV i32 row() const { return m * static_cast<i32>(kBlockM); }
  DEV i64 place(const BackwardParams& p, i32 batch) const { return place_of(p, head, first_q_block(p, batch) + m); }
};

// The tiles that the consumers work on, as a helper's warp follows them: visit(k, tile, slot, walk) in each, which
// releases k. slot(): where the tile lies, to read it again where registers are few.
template <class Memory, class Visit>
DEV void each_key_tile(const Memory& memory, const BackwardParams& p, const Visit& visit) {
  Pipeline<kLayout.k> k = memory.k();
  for (;;) {
    k.wait();
    const auto slot = [&] { return memory.tile(opaque(k.state.slot)); };
    const KeyTile tile = load_key_tile(slot());
    if (!tile.exists()) return;
    visit(k, tile, slot, BlockWalk::of(p, tile, slot()));
  }
}

}  // namespace onepass::sm90
