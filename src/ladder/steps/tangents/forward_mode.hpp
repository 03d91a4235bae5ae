// Forward mode in the loops of FlashAttention-2: O and its derivative along tangents of Q, K and V, in one pass.
//
//   dS = scale (tQ K^T + Q tK^T)    mu = sum_j P dS, the derivative of LSE    tO = (P dS) V + P tV - mu O
//
// All are sums over keys that move by the factor of O when the maximum does (docs/derivation.md, section 15). Six
// products instead of the forward's two, and two numbers more per row: no N^2 memory.
#pragma once
#include "ladder/steps/flash2_forward.hpp"

namespace onepass::ladder {

// How the inputs of a head move, each in its own shape.
template <class T>
struct Tangents {
  Slow<T> q, k, v;
};

// tO [seq_q, dv] beside O and LSE, and mu [seq_q, 1].
template <class T>
struct ForwardMode {
  Forward<T> forward;
  Slow<T> o, mu;
};

// On chip: Q, K, V and tangents stored; O and tO working; scores and their derivatives; (m, l), mu and LSE.
template <class T>
Index forward_mode_bytes(TileShape t, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  return 2 * t.rows * (head.d() * stored + head.dv() * working) + 2 * t.keys * (head.d() + head.dv()) * stored +
         t.rows * (2 * t.keys + 4) * working;
}
template <class T>
TileShape forward_mode_tiles(Index fast_bytes, const Head<T>& head) {
  return fit(flash2_forward_tiles(fast_bytes, head), &TileShape::keys, fast_bytes,
             [&](TileShape t) { return forward_mode_bytes(t, head); });
}

// dS of a tile, in natural units.
template <class T>
Tile<T> score_tangents(Machine<T>& machine, const Head<T>& head, const Tile<T>& q, const Tile<T>& k, const Tile<T>& tq,
                       const Tile<T>& tk) {
  Tile<T> ds = machine.tile(q.rows(), k.rows());
  add_product_nt(ds, tq, k);
  add_product_nt(ds, q, tk);
  scale(ds, T(head.scale()));
  return ds;
}

// One step: scores p and their derivatives ds join (states, mu, o, to).
template <class T>
void forward_mode_step(const Head<T>& head, Tile<T>& states, Tile<T>& mu, Tile<T>& o, Tile<T>& to, Tile<T>& p,
                       Tile<T>& ds, const Tile<T>& v, const Tile<T>& tv, Index row, Index key) {
  for (Index r = 0; r < p.rows(); ++r) {
    RowState<T> state = state_of(states, r);
    const T alpha = absorb_row(state, p, r);
    put_state(states, r, state);
    for (Tile<T>* sum : {&o, &to, &mu}) scale_row(*sum, r, alpha);
    multiply_row(ds, p, r);
    add_row_sum(mu, ds, r);
  }
  drop(p, head.dropout, row, key);  // mu has no dropout
  drop(ds, head.dropout, row, key);
  add_product(o, p, v);
  add_product(to, ds, v);
  add_product(to, p, tv);
}

template <class T>
ForwardMode<T> forward_mode(Machine<T>& machine, const Head<T>& head, const Tangents<T>& tangents, TileShape shape) {
  const Index n = head.seq_q();
  const Format<T> stored = head.q.format();
  ForwardMode<T> out{
      {Slow<T>(n, head.dv(), stored), machine.scratch(n, 1)}, Slow<T>(n, head.dv(), stored), machine.scratch(n, 1)};
  for (Index row = 0; row < n; row += shape.rows) {
    const Index rows = std::min(shape.rows, n - row);
    const Tile<T> q = machine.load(head.q, row, rows), tq = machine.load(tangents.q, row, rows);
    Tile<T> o = machine.tile(rows, head.dv()), to = machine.tile(rows, head.dv()), mu = machine.tile(rows, 1);
    Tile<T> states = empty_states(machine, rows);
    for_visible_tiles(head.mask, row, rows, shape.keys, [&](Index key, Index count, TileKind kind) {
      const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
      const Tile<T> tk = machine.load(tangents.k, key, count), tv = machine.load(tangents.v, key, count);
      Tile<T> p = scores_of(machine, head, q, k), ds = score_tangents(machine, head, q, k, tq, tk);
      if (kind == TileKind::partial) hide(p, head.mask, row, key);
      forward_mode_step(head, states, mu, o, to, p, ds, v, tv, row, key);
    });
    for (Index r = 0; r < rows; ++r) {
      const T inv_l = inverse_sum(state_of(states, r));
      machine.counts.pointwise_flops += 1;
      scale_row(mu, r, inv_l);
      scale_row(to, r, inv_l);
    }
    machine.store(mu, out.mu, row);
    finish_rows(machine, states, o, out.forward, row);
    for (Index r = 0; r < rows; ++r) subtract_scaled_row(to, mu(r, 0), o, r);
    machine.store(to, out.o, row);
  }
  return out;
}

}  // namespace onepass::ladder
