// FlashAttention-1, forward (Dao et al. 2022, Algorithms 1 and 2): K/V tiles outside, Q tiles inside.
//
// A K/V tile is loaded once and every Q tile visits it; O, m and l wait in slow memory between visits. Traffic:
// 2 N d + N (d + 2) + ceil(N / Bc) N (3 d + 4), which is Theta(N^2 d^2 / M). Nothing of size N^2 exists anywhere.
#pragma once
#include "ladder/tiles.hpp"

namespace onepass::ladder {

// On chip: K, V, Q, O, the scores, and (m, l) of the rows.
template <class T>
Index flash1_forward_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  return (t.keys + t.rows) * (head.d() + head.dv()) * stored + t.rows * (t.keys + 2) * working;
}
// Br does not change the traffic, so it gives way first.
template <class T>
TileShape flash1_forward_tiles(Index sram_bytes, Index fast_bytes, const Head<T>& head) {
  return fit(paper_tiles(sram_bytes, head), &TileShape::rows, fast_bytes,
             [&](TileShape t) { return flash1_forward_bytes(t, head); });
}

// stats is [seq_q, 2]: m in log2 units, and l.
template <class T>
Forward<T> flash1_forward(Machine<T>& machine, const Head<T>& head, TileShape shape) {
  const Index n = head.seq_q(), keys = head.seq_k();
  Forward<T> out{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 2)};
  for (Index row = 0; row < n; row += shape.rows) {  // O = 0, m = -inf, l = 0 in slow memory
    const Index rows = std::min(shape.rows, n - row);
    machine.store(machine.tile(rows, head.dv()), out.o, row);
    machine.store(empty_states(machine, rows), out.stats, row);
  }
  for (Index key = 0; key < keys; key += shape.keys) {
    const Index count = std::min(shape.keys, keys - key);
    const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
    for (Index row = 0; row < n; row += shape.rows) {
      const Index rows = std::min(shape.rows, n - row);
      const Tile<T> q = machine.load(head.q, row, rows);
      Tile<T> o = machine.load(out.o, row, rows), states = machine.load(out.stats, row, rows);
      Tile<T> p = scores_of(machine, head, q, k);
      if (head.masked()) hide(p, head.mask, row, key);
      for (Index r = 0; r < rows; ++r) {
        RowState<T> tile;
        absorb_row(tile, p, r);
        const RowState<T> before = state_of(states, r);
        const Merged<T> both = merge(machine.counts, before, tile);
        const T inv_l = inverse_sum(both.state);
        scale_row(o, r, both.alpha_a * before.l * inv_l);  // O is kept normalised: undo l, move to m_new, divide again
        scale_row(p, r, both.alpha_b * inv_l);
        machine.counts.pointwise_flops += 4;
        put_state(states, r, both.state);
      }
      drop(p, head.dropout, row, key);
      add_product(o, p, v);
      machine.store(o, out.o, row);
      machine.store(states, out.stats, row);
    }
  }
  return out;
}

}  // namespace onepass::ladder
