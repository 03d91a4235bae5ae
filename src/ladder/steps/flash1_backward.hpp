// FlashAttention-1, backward (Dao et al. 2022, Algorithm 4): P is made again from (m, l), tile by tile.
//
// Five products instead of standard attention's four, and no N^2 memory: O(N) extra for (m, l). K, V, dK and dV stay on
// chip for a column of tiles; dQ goes back to slow memory on every visit.
#pragma once
#include "ladder/steps/flash1_forward.hpp"

namespace onepass::ladder {

// On chip: K, V stored and dK, dV working; Q, O, dO, dQ stored; two tiles of scores; (m, l).
template <class T>
Index flash1_backward_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  const Index both = head.d() + head.dv();
  return t.keys * both * (stored + working) + 2 * t.rows * both * stored + t.rows * (2 * t.keys + 2) * working;
}
template <class T>
TileShape flash1_backward_tiles(Index sram_bytes, Index fast_bytes, const Head<T>& head) {
  return fit(paper_tiles(sram_bytes, head), &TileShape::rows, fast_bytes,
             [&](TileShape t) { return flash1_backward_bytes(t, head); });
}

// One tile of weights p, in both backward passes: dV += P^T dO, dP = dO V^T, dS = scale P * (dP - D),
// dK += dS^T Q, dQ += dS K. delta(r) is D of row r: rowsum(dO * O) = rowsum(P * dP).
template <class T, class Delta>
void backward_tile(Machine<T>& machine, const Head<T>& head, Tile<T>& p, const Tile<T>& q, const Tile<T>& d_o,
                   const Tile<T>& k, const Tile<T>& v, Tile<T>& dq, Tile<T>& dk, Tile<T>& dv, Index row, Index key,
                   Delta&& delta) {
  if (head.dropout.active()) {
    Tile<T> dropped = machine.copy(p);
    drop(dropped, head.dropout, row, key);
    add_product_tn(dv, dropped, d_o);
  } else {
    add_product_tn(dv, p, d_o);
  }
  Tile<T> ds = machine.tile(p.rows(), p.cols());
  add_product_nt(ds, d_o, v);
  drop(ds, head.dropout, row, key);
  for (Index r = 0; r < p.rows(); ++r) {
    const T d = delta(r);
    each(ds, r, 1, [d](T x) { return x - d; });
    multiply_row(ds, p, r);
    scale_row(ds, r, T(head.scale()));
  }
  add_product_tn(dk, ds, q);
  add_product(dq, ds, k);
}

template <class T>
Gradients<T> flash1_backward(Machine<T>& machine, const Head<T>& head, const Forward<T>& f, const Slow<T>& d_o,
                             TileShape shape) {
  const Index n = head.seq_q(), keys = head.seq_k();
  const Format<T> stored = head.q.format();
  Gradients<T> g{Slow<T>(n, head.d(), stored), Slow<T>(keys, head.d(), stored), Slow<T>(keys, head.dv(), stored)};
  clear(machine, g.dq, shape.rows);
  for (Index key = 0; key < keys; key += shape.keys) {
    const Index count = std::min(shape.keys, keys - key);
    const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
    Tile<T> dk = machine.tile(count, head.d()), dv = machine.tile(count, head.dv());
    for (Index row = 0; row < n; row += shape.rows) {
      const Index rows = std::min(shape.rows, n - row);
      const Tile<T> q = machine.load(head.q, row, rows), o = machine.load(f.o, row, rows);
      const Tile<T> grad = machine.load(d_o, row, rows), states = machine.load(f.stats, row, rows);
      Tile<T> dq = machine.load(g.dq, row, rows);
      Tile<T> p = scores_of(machine, head, q, k);
      if (head.masked()) hide(p, head.mask, row, key);
      for (Index r = 0; r < rows; ++r) {  // P = 2^(s - m) / l
        const RowState<T> state = state_of(states, r);
        const Rescale<T> reference{T(1), finite_ref(state.m)};
        const T inv_l = inverse_sum(state);
        each(p, r, 2, [&](T s) { return weight(s, reference) * inv_l; });
        machine.counts.pointwise_flops += 1;
        machine.counts.exponentials += count;
      }
      backward_tile(machine, head, p, q, grad, k, v, dq, dk, dv, row, key,
                    [&](Index r) { return row_dot(grad, o, r); });
      machine.store(dq, g.dq, row);
    }
    machine.store(dk, g.dk, key);
    machine.store(dv, g.dv, key);
  }
  return g;
}

}  // namespace onepass::ladder
