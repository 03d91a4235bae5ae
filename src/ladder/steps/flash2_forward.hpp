// FlashAttention-2, forward (Dao 2023, Algorithm 1): Q tiles outside, K/V tiles inside.
//
// O stays on chip, unscaled until the end (one multiplication per element and tile when the maximum moves, none to
// normalise), and leaves once, with one number per row: LSE = m + log l. Q tiles are independent, so the sequence is a
// parallel dimension. Tiles that the mask hides are neither loaded nor computed, and only tiles that straddle the
// mask's edge are masked. Traffic: 2 N d + N + ceil(N / Br) 2 N d, with tiles that are skipped left out.
#pragma once
#include "ladder/tiles.hpp"

namespace onepass::ladder {

// On chip: Q, K, V stored; O working; the scores; (m, l).
template <class T>
Index flash2_forward_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  return t.rows * (head.d() * stored + head.dv() * working) + t.keys * (head.d() + head.dv()) * stored +
         t.rows * (t.keys + 3) * working;
}
// FlashAttention-1's shape turned over: here K and V move once per Q tile, so Br is large and Bc gives way first.
template <class T>
TileShape flash2_forward_tiles(Index fast_bytes, const Head<T>& head) {
  const TileShape turned = paper_tiles(fast_bytes, head);
  return fit({turned.keys, turned.rows}, &TileShape::keys, fast_bytes,
             [&](TileShape t) { return flash2_forward_bytes(t, head); });
}

// f(first key, how many, kind) over the K/V tiles that the rows [row, row + rows) see; kind is full or partial.
template <class F>
void for_visible_tiles(const BandMask& mask, Index row, Index rows, Index tile_keys, F&& f) {
  const Range seen = mask.key_range(row, row + rows);
  for (Index key = seen.lo / tile_keys * tile_keys; key < seen.hi; key += tile_keys) {
    const Index count = std::min(tile_keys, mask.seq_k - key);
    const TileKind kind = mask.classify(row, row + rows, key, key + count);
    if (kind != TileKind::skip) f(key, count, kind);
  }
}

// One step: the scores p of a tile join (states, o).
template <class T>
void flash2_step(const Head<T>& head, Tile<T>& states, Tile<T>& o, Tile<T>& p, const Tile<T>& v, Index row, Index key) {
  for (Index r = 0; r < p.rows(); ++r) {
    RowState<T> state = state_of(states, r);
    scale_row(o, r, absorb_row(state, p, r));
    put_state(states, r, state);
  }
  drop(p, head.dropout, row, key);
  add_product(o, p, v);
}

// O / l and the LSE leave for slow memory.
template <class T>
void finish_rows(Machine<T>& machine, const Tile<T>& states, Tile<T>& o, Forward<T>& out, Index row) {
  Tile<T> lse = machine.tile(o.rows(), 1);
  for (Index r = 0; r < o.rows(); ++r) {
    const Final<T> final = finalize(machine.counts, state_of(states, r));
    scale_row(o, r, final.inv_l);
    lse(r, 0) = final.lse;
  }
  machine.store(o, out.o, row);
  machine.store(lse, out.stats, row);
}

template <class T>
Forward<T> flash2_forward(Machine<T>& machine, const Head<T>& head, TileShape shape) {
  const Index n = head.seq_q();
  Forward<T> out{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 1)};
  for (Index row = 0; row < n; row += shape.rows) {
    const Index rows = std::min(shape.rows, n - row);
    const Tile<T> q = machine.load(head.q, row, rows);
    Tile<T> o = machine.tile(rows, head.dv()), states = empty_states(machine, rows);
    for_visible_tiles(head.mask, row, rows, shape.keys, [&](Index key, Index count, TileKind kind) {
      const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
      Tile<T> p = scores_of(machine, head, q, k);
      if (kind == TileKind::partial) hide(p, head.mask, row, key);
      flash2_step(head, states, o, p, v, row, key);
    });
    finish_rows(machine, states, o, out, row);
  }
  return out;
}

}  // namespace onepass::ladder
