// Second derivatives in the loops of FlashAttention-2's backward: how dQ, dK and dV move along tangents of Q, K, V, dO.
//
//   tP = P (tS - mu)    tdP = tdO V^T + dO tV^T    tdS = scale (tP (dP - D) + P (tdP - tD))
//   tdV = tP^T dO + P^T tdO    tdQ = tdS K + dS tK    tdK = tdS^T Q + dS^T tQ
//
// P and tS are computed again from LSE and mu, which forward mode leaves (docs/derivation.md, section 16). Twelve
// products instead of the backward's five, and no N^2 memory.
#pragma once
#include "ladder/steps/flash2_backward.hpp"
#include "ladder/steps/tangents/forward_mode.hpp"

namespace onepass::ladder {

// Inputs of a backward beside the head: dO, and how it and the head's inputs move.
template <class T>
struct MovingBackward {
  const Tangents<T>& tangents;
  const Slow<T>&d_o, &td_o;
};

// On chip: K, V and tangents stored, tdK and tdV working; Q, dO and tangents and tdQ stored; six tiles of scores; LSE,
// mu, D, tD.
template <class T>
Index second_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T), both = head.d() + head.dv();
  return t.keys * both * (2 * stored + working) + t.rows * (2 * both + head.d()) * stored +
         t.rows * (6 * t.keys + 4) * working;
}
template <class T>
TileShape second_tiles(Index fast_bytes, const Head<T>& head) {
  return fit(paper_tiles(fast_bytes, head), &TileShape::rows, fast_bytes,
             [&](TileShape t) { return second_bytes(t, head); });
}

// D = rowsum(dO * O) and tD = rowsum(tdO * O + dO * tO), [seq_q, 2] in slow memory.
template <class T>
Slow<T> moving_deltas(Machine<T>& machine, const ForwardMode<T>& f, const MovingBackward<T>& in, Index tile_rows) {
  const Index n = in.d_o.rows();
  Slow<T> deltas = machine.scratch(n, 2);
  for (Index row = 0; row < n; row += tile_rows) {
    const Index rows = std::min(tile_rows, n - row);
    const Tile<T> d_o = machine.load(in.d_o, row, rows), td_o = machine.load(in.td_o, row, rows);
    const Tile<T> o = machine.load(f.forward.o, row, rows), to = machine.load(f.o, row, rows);
    Tile<T> d = machine.tile(rows, 2);
    for (Index r = 0; r < rows; ++r) {
      d(r, 0) = row_dot(d_o, o, r);
      d(r, 1) = row_dot(td_o, o, r) + row_dot(d_o, to, r);
    }
    machine.counts.pointwise_flops += rows;
    machine.store(d, deltas, row);
  }
  return deltas;
}

// c += a^T b with dropout's factors on a.
template <class T>
void add_dropped_tn(Machine<T>& machine, const Head<T>& head, Tile<T>& c, const Tile<T>& a, const Tile<T>& b, Index row,
                    Index key) {
  if (!head.dropout.active()) return add_product_tn(c, a, b);
  Tile<T> dropped = machine.copy(a);
  drop(dropped, head.dropout, row, key);
  add_product_tn(c, dropped, b);
}

// Row r of dP, tdP becomes that of dS, tdS.
template <class T>
void differentiate_row(Tile<T>& dp, Tile<T>& tdp, const Tile<T>& p, const Tile<T>& tp, T scale, const Tile<T>& deltas,
                       Index r) {
  const T d = deltas(r, 0), td = deltas(r, 1);
  for (Index c = 0; c < p.cols(); ++c) {
    const T centered = dp(r, c) - d;
    tdp(r, c) = scale * (tp(r, c) * centered + p(r, c) * (tdp(r, c) - td));
    dp(r, c) = scale * (p(r, c) * centered);
  }
  p.counts().pointwise_flops += 8 * p.cols();
}

// f: of forward_mode() along the same tangents. Column blocks outside, as in flash2_backward().
template <class T>
Gradients<T> second_derivatives(Machine<T>& machine, const Head<T>& head, const ForwardMode<T>& f,
                                const MovingBackward<T>& in, TileShape shape) {
  const Index n = head.seq_q(), keys = head.seq_k();
  const Format<T> stored = head.q.format();
  Gradients<T> g{Slow<T>(n, head.d(), stored), Slow<T>(keys, head.d(), stored), Slow<T>(keys, head.dv(), stored)};
  const Slow<T> all_deltas = moving_deltas(machine, f, in, shape.rows);
  clear(machine, g.dq, shape.rows);
  for (Index key = 0; key < keys; key += shape.keys) {
    const Index count = std::min(shape.keys, keys - key);
    const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
    const Tile<T> tk = machine.load(in.tangents.k, key, count), tv = machine.load(in.tangents.v, key, count);
    Tile<T> tdk = machine.tile(count, head.d()), tdv = machine.tile(count, head.dv());
    for (Index row = 0; row < n; row += shape.rows) {
      const Index rows = std::min(shape.rows, n - row);
      const TileKind kind = head.mask.classify(row, row + rows, key, key + count);
      if (kind == TileKind::skip) continue;
      const Tile<T> q = machine.load(head.q, row, rows), tq = machine.load(in.tangents.q, row, rows);
      const Tile<T> d_o = machine.load(in.d_o, row, rows), td_o = machine.load(in.td_o, row, rows);
      const Tile<T> lse = machine.load(f.forward.stats, row, rows), mu = machine.load(f.mu, row, rows);
      const Tile<T> deltas = machine.load(all_deltas, row, rows);
      Tile<T> tdq = machine.load(g.dq, row, rows);
      Tile<T> p = scores_of(machine, head, q, k), tp = score_tangents(machine, head, q, k, tq, tk);
      if (kind == TileKind::partial) hide(p, head.mask, row, key);
      for (Index r = 0; r < rows; ++r) {
        weights_from_lse(p, lse, r);
        each(tp, r, 1, [m = mu(r, 0)](T ts) { return ts - m; });
        multiply_row(tp, p, r);
      }
      add_dropped_tn(machine, head, tdv, tp, d_o, row, key);
      add_dropped_tn(machine, head, tdv, p, td_o, row, key);
      Tile<T> ds = machine.tile(rows, count), tds = machine.tile(rows, count);
      add_product_nt(ds, d_o, v);
      add_product_nt(tds, td_o, v);
      add_product_nt(tds, d_o, tv);
      drop(ds, head.dropout, row, key);
      drop(tds, head.dropout, row, key);
      for (Index r = 0; r < rows; ++r) differentiate_row(ds, tds, p, tp, T(head.scale()), deltas, r);
      add_product_tn(tdk, tds, q);
      add_product_tn(tdk, ds, tq);
      add_product(tdq, tds, k);
      add_product(tdq, ds, tk);
      machine.store(tdq, g.dq, row);
    }
    machine.store(tdk, g.dk, key);
    machine.store(tdv, g.dv, key);
  }
  return g;
}

}  // namespace onepass::ladder
