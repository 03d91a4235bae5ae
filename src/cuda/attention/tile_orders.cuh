// Orders of work beside RowsOuter (tile_scheduler.cuh): by keys, and by splits of the keys.
#pragma once
#include "cuda/attention/backward/backward.hpp"
#include "cuda/attention/tile_scheduler.cuh"

namespace onepass {

// block_n keys of one head of K and V against blocks [m_lo, m_hi) of block_m rows: of every query head that shares it.
struct KeyTile {
  i32 key = -1;                            // first key within its sequence; -1: no more work
  i32 number = 0;                          // of the tile
  i32 head = 0, batch = 0, map_batch = 0;  // head: of K and V; map_batch: coordinate in the tensor maps, 0 if packed
  i32 q_begin = 0, k_begin = 0, seq_q = 0, seq_k = 0;
  i32 m_lo = 0, m_hi = 0;
  bool upwards = false;  // its blocks come from the last to the first
  DEV bool exists() const { return key >= 0; }
};

// The rows that see at least one of the keys [key_lo, key_hi) lie in this range; key_hi at most seq_k. Both ends of
// what a row sees move on with the row, so the rows that the band's right side lets in come first.
DEV Band32::Range rows_that_see(const Band32& band, i32 key_lo, i32 key_hi) {
  const i32 from = band.right < 0 ? 0 : key_lo - band.right - band.shift;
  const i32 to = band.left < 0 ? band.seq_q : key_hi + band.left - band.shift;
  const Band32::Range rows = {max(from, 0), min(to, band.seq_q)};
  return rows.lo < rows.hi ? rows : Band32::Range{0, 0};
}

// True if KeysOuter in ordered mode visits keys from the last to the first.
DEV bool last_keys_first(const BackwardParams& p) { return p.heads_per_kv <= 1; }

// Keys outer, as a backward pass adds up dK and dV: a tile of keys stays while the rows that see it pass. The first
// keys come first: where the band is bounded right, most rows see them. The heads of K and V come in groups, tile by
// tile, and the last few as one group, whose short tiles fill the end. A boolean mask narrows nothing here.
//
// by_turns: tiles add to a row block's sums in the order in which they are drawn, so none waits for one that is not
// drawn. A sequence's last keys come first: causally a tile, which begins at its diagonal, is behind the one drawn
// before it by the rows between their diagonals. Where query heads share keys the first come first, and all go through
// their rows from the last to the first: side by side, so that they find them in L2.
//
// Causally, where query heads share keys and so one head of K and V brings more rows than L2 holds, every other group
// goes through its rows from the last to the first. Where a group fills the multiprocessors once, its tiles begin
// together, and so read the same rows together; they end one after the other, the short ones first, and the next
// group's tiles, which begin then and at their diagonals, read the same rows together again.
template <i32 block_m, i32 block_n, bool by_turns = false>
struct KeysOuter {
  using Tile = KeyTile;
  using Params = BackwardParams;
  const BackwardParams& p;
  i32 per_head = 0;

  DEV explicit KeysOuter(const BackwardParams& params) : p(params) {
    if constexpr (features.packed) per_head = sequences().all();
  }
  DEV SequenceTiles<block_n> sequences() const { return {{p.cu_k}, p.batch}; }
  DEV i32 sequence_tiles() const { return ceil_div(opaque(p.seq_k), block_n); }
  static constexpr bool kAlternates =
      features.bounded_right && !features.bounded_left && !features.packed && !features.bool_mask && !by_turns;

  DEV i32 count() const { return opaque(p.heads_kv) * (features.packed ? per_head : p.batch * sequence_tiles()); }
  DEV KeyTile tile(i32 number) const {
    KeyTile x;
    if (number >= count()) return x;
    x.number = number;
    x.upwards = by_turns && !last_keys_first(p);
    i32 n;
    if constexpr (features.packed) {
      x.head = number / per_head;
      n = sequences().find(number - x.head * per_head, x.batch);
      x.q_begin = p.cu_q[x.batch], x.seq_q = p.cu_q[x.batch + 1] - x.q_begin;
      x.k_begin = p.cu_k[x.batch], x.seq_k = p.cu_k[x.batch + 1] - x.k_begin;
    } else {
      const i32 of_each = opaque(sequence_tiles());  // divisions stay here
      i32 first = 0, size = opaque(p.head_group),
          end = opaque(p.heads_kv) * p.batch - p.tail_heads;  // of the heads that come in groups
      if (number >= end * of_each) first = end, size = p.tail_heads, end += size;
      const i32 r = number - first * of_each, g = r / (size * of_each), in = r - g * size * of_each;
      first += g * size;
      if constexpr (kAlternates) x.upwards = p.heads_per_kv > 1 && g % 2 == 0;
      const i32 in_group = min(size, end - first);
      n = in / in_group;
      first += in - n * in_group;
      x.head = first / p.batch;
      x.map_batch = x.batch = first - x.head * p.batch;
      x.seq_q = p.seq_q, x.seq_k = p.seq_k;
    }
    if (by_turns && last_keys_first(p)) n = ceil_div(x.seq_k, block_n) - 1 - n;
    x.key = n * block_n;
    const Band32::Range rows = rows_that_see(band_of(p, x.seq_q, x.seq_k), x.key, min(x.key + block_n, x.seq_k));
    if constexpr (features.packed) {
      if (p.heads_per_kv == 0) return x;  // no query head; else seq_q is 0 then
    }
    x.m_lo = rows.lo / block_m;
    x.m_hi = ceil_div(rows.hi, block_m);
    return x;
  }
};

// Splits of keys, as decoding has them: the blocks of keys of each tile of rows go to `splits` tiles of work, of sizes
// that differ by at most one block; some are empty where there are fewer blocks. Split s of row tile t is number
// t * splits + s. The states of a row tile's splits are merged afterwards.
template <i32 block_m, i32 block_n>
struct KeySplits {
  using Tile = WorkTile;
  RowsOuter<block_m, block_n> rows;
  i32 splits;

  DEV KeySplits(const ForwardParams& p, i32 of_each) : rows(p), splits(of_each) {}
  DEV i32 count() const { return rows.count() * splits; }
  DEV WorkTile tile(i32 number) const {
    const i32 row_tile = number / splits, split = number - row_tile * splits;
    WorkTile x = rows.tile(row_tile);
    if (!x.exists()) return x;
    const i32 lo = x.n_lo, blocks = max(x.n_hi - lo, 0), each = blocks / splits, rest = blocks - each * splits;
    x.number = number;
    x.n_lo = lo + split * each + min(split, rest);
    x.n_hi = x.n_lo + each + (split < rest ? 1 : 0);
    return x;
  }
};

}  // namespace onepass
