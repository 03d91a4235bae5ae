// FlashAttention-2, backward (Dao 2023, Algorithm 2): column blocks, from LSE and D = rowsum(dO * O).
//
// D is made once, so O is not loaded again; one number per row (LSE) replaces two. Column blocks are independent but
// for dQ, to which each adds: by atomic addition on a GPU, here in the order of the blocks, so that the sum is
// repeatable.
#pragma once
#include "ladder/steps/flash1_backward.hpp"
#include "ladder/steps/flash2_forward.hpp"

namespace onepass::ladder {

// On chip: K, V stored and dK, dV working; Q, dO, dQ stored; two tiles of scores; LSE and D. Column blocks stay, so Br
// gives way first, as in FlashAttention-1.
template <class T>
Index flash2_backward_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  return t.keys * (head.d() + head.dv()) * (stored + working) + t.rows * (2 * head.d() + 2 * head.dv()) * stored +
         t.rows * (2 * t.keys + 2) * working;
}
template <class T>
TileShape flash2_backward_tiles(Index fast_bytes, const Head<T>& head) {
  return fit(paper_tiles(fast_bytes, head), &TileShape::rows, fast_bytes,
             [&](TileShape t) { return flash2_backward_bytes(t, head); });
}

// D = rowsum(dO * O) [seq_q, 1] in slow memory.
template <class T>
Slow<T> row_deltas(Machine<T>& machine, const Forward<T>& f, const Slow<T>& d_o, Index tile_rows) {
  Slow<T> delta = machine.scratch(d_o.rows(), 1);
  for (Index row = 0; row < d_o.rows(); row += tile_rows) {
    const Index rows = std::min(tile_rows, d_o.rows() - row);
    const Tile<T> grad = machine.load(d_o, row, rows), o = machine.load(f.o, row, rows);
    Tile<T> d = machine.tile(rows, 1);
    for (Index r = 0; r < rows; ++r) d(r, 0) = row_dot(grad, o, r);
    machine.store(d, delta, row);
  }
  return delta;
}

// Row r of scores becomes P = 2^(s - LSE).
template <class T>
void weights_from_lse(Tile<T>& p, const Tile<T>& lse, Index r) {
  const T lse2 = lse(r, 0) * T(kLog2e);
  each(p, r, 1, [lse2](T s) { return probability(s, lse2); });
  p.counts().pointwise_flops += 1;
  p.counts().exponentials += p.cols();
}

template <class T>
Gradients<T> flash2_backward(Machine<T>& machine, const Head<T>& head, const Forward<T>& f, const Slow<T>& d_o,
                             TileShape shape) {
  const Index n = head.seq_q(), keys = head.seq_k();
  const Format<T> stored = head.q.format();
  Gradients<T> g{Slow<T>(n, head.d(), stored), Slow<T>(keys, head.d(), stored), Slow<T>(keys, head.dv(), stored)};
  const Slow<T> deltas = row_deltas(machine, f, d_o, shape.rows);
  clear(machine, g.dq, shape.rows);
  for (Index key = 0; key < keys; key += shape.keys) {
    const Index count = std::min(shape.keys, keys - key);
    const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
    Tile<T> dk = machine.tile(count, head.d()), dv = machine.tile(count, head.dv());
    for (Index row = 0; row < n; row += shape.rows) {
      const Index rows = std::min(shape.rows, n - row);
      const TileKind kind = head.mask.classify(row, row + rows, key, key + count);
      if (kind == TileKind::skip) continue;
      const Tile<T> q = machine.load(head.q, row, rows), grad = machine.load(d_o, row, rows);
      const Tile<T> lse = machine.load(f.stats, row, rows), delta = machine.load(deltas, row, rows);
      Tile<T> dq = machine.load(g.dq, row, rows);
      Tile<T> p = scores_of(machine, head, q, k);
      if (kind == TileKind::partial) hide(p, head.mask, row, key);
      for (Index r = 0; r < rows; ++r) weights_from_lse(p, lse, r);
      backward_tile(machine, head, p, q, grad, k, v, dq, dk, dv, row, key, [&](Index r) { return delta(r, 0); });
      machine.store(dq, g.dq, row);
    }
    machine.store(dk, g.dk, key);
    machine.store(dv, g.dv, key);
  }
  return g;
}

}  // namespace onepass::ladder
