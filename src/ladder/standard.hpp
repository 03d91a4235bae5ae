// Standard attention: S = Q K^T, P = softmax(S), O = P V as separate kernels, every intermediate in slow memory.
//
// Forward moves Theta(N d + N^2) and keeps S and P, N^2 each; a mask is one more trip over S, dropout one over P that
// also stores the dropped mask, one byte each. Backward is Algorithm 3 of Dao et al. 2022 and reads the stored P.
#pragma once
#include "ladder/gemm.hpp"
#include "ladder/head.hpp"
#include "ladder/online_softmax.hpp"

namespace onepass::ladder {

template <class T>
struct StandardForward {
  Slow<T> o, p;
  Slow<T> p_dropped, factors;  // dropout only: the weights used and what P was multiplied by
  const Slow<T>& weights() const { return p_dropped.rows() > 0 ? p_dropped : p; }
};

// Softmax of rows that fit in fast memory: one read, one write. Longer rows take the two passes of online softmax.
template <class T>
void row_softmax(Machine<T>& machine, const Slow<T>& s, Slow<T>& p) {
  if (chunk_of(machine, s) < s.cols()) return online_softmax(machine, s, p);
  for (Index row = 0; row < s.rows(); ++row) {
    Tile<T> t = machine.load(s, row, 1);
    RowState<T> state;
    absorb_row(state, t, 0);
    scale_row(t, 0, finalize(machine.counts, state).inv_l);
    machine.store(t, p, row);
  }
}

template <class T>
void apply_dropout(Machine<T>& machine, const Dropout& dropout, StandardForward<T>& f) {
  for (Index row = 0; row < f.p.rows(); ++row) {
    for_chunks(
        machine, f.p, row,
        [&](Tile<T>& t, Index col) {
          Tile<T> factor = machine.tile(1, t.cols());
          for (Index c = 0; c < t.cols(); ++c) {
            factor(0, c) = T(dropout.factor(0, 0, static_cast<unsigned>(row), static_cast<unsigned>(col + c)));
          }
          machine.store(factor, f.factors, row, col);
          multiply_row(t, factor, 0);
          machine.store(t, f.p_dropped, row, col);
        },
        2);
  }
}

template <class T>
StandardForward<T> standard_forward(Machine<T>& machine, const Head<T>& head) {
  const Index n = head.seq_q(), keys = head.seq_k();
  const Format<T> stored = head.q.format();
  StandardForward<T> f{Slow<T>(n, head.dv(), stored), machine.scratch(n, keys, stored), {}, {}};
  {
    Slow<T> s = machine.scratch(n, keys, stored);
    gemm(machine, head.q, head.k, s, Turn::b, [&](Tile<T>& t, Index, Index) { scale(t, head.scale_log2()); });
    for (Index row = 0; head.masked() && row < n; ++row) {
      for_chunks(machine, s, row, [&](Tile<T>& t, Index col) {
        hide(t, head.mask, row, col);
        machine.store(t, s, row, col);
      });
    }
    row_softmax(machine, s, f.p);
  }
  if (head.dropout.active()) {
    f.p_dropped = machine.scratch(n, keys, stored);
    f.factors = machine.scratch(n, keys, Format<T>{1, nullptr});
    apply_dropout(machine, head.dropout, f);
  }
  gemm(machine, f.weights(), head.v, f.o, Turn::none);
  return f;
}

// dS = scale P * (dP - rowsum(P * dP)); a row of P and of dP is read once if both fit, twice if not.
template <class T>
void softmax_backward(Machine<T>& machine, const Slow<T>& p, const Slow<T>& dp, Slow<T>& ds, T scale) {
  const auto finish = [&](Tile<T>& weights, Tile<T>& t, T sum, Index row, Index col) {
    each(t, 0, 1, [sum](T x) { return x - sum; });
    multiply_row(t, weights, 0);
    scale_row(t, 0, scale);
    machine.store(t, ds, row, col);
  };
  const Index chunk = chunk_of(machine, p, 2);
  for (Index row = 0; row < p.rows(); ++row) {
    T sum = T(0);
    for (Index col = 0; col < p.cols(); col += chunk) {
      const Index cols = std::min(chunk, p.cols() - col);
      Tile<T> weights = machine.load(p, row, 1, col, cols), t = machine.load(dp, row, 1, col, cols);
      sum = sum + row_dot(weights, t, 0);
      machine.counts.pointwise_flops += 1;
      if (cols == p.cols()) finish(weights, t, sum, row, col);
    }
    for (Index col = 0; chunk < p.cols() && col < p.cols(); col += chunk) {
      const Index cols = std::min(chunk, p.cols() - col);
      Tile<T> weights = machine.load(p, row, 1, col, cols), t = machine.load(dp, row, 1, col, cols);
      finish(weights, t, sum, row, col);
    }
  }
}

template <class T>
Gradients<T> standard_backward(Machine<T>& machine, const Head<T>& head, const StandardForward<T>& f,
                               const Slow<T>& d_o) {
  const Format<T> stored = head.q.format();
  Gradients<T> g{Slow<T>(head.seq_q(), head.d(), stored), Slow<T>(head.seq_k(), head.d(), stored),
                 Slow<T>(head.seq_k(), head.dv(), stored)};
  Slow<T> dp = machine.scratch(head.seq_q(), head.seq_k(), stored),
          ds = machine.scratch(head.seq_q(), head.seq_k(), stored);
  gemm(machine, f.weights(), d_o, g.dv, Turn::a);  // dV = P^T dO
  gemm(machine, d_o, head.v, dp, Turn::b);         // dP = dO V^T
  if (head.dropout.active()) {
    for (Index row = 0; row < dp.rows(); ++row) {
      for_chunks(
          machine, dp, row,
          [&](Tile<T>& t, Index col) {
            multiply_row(t, machine.load(f.factors, row, 1, col, t.cols()), 0);
            machine.store(t, dp, row, col);
          },
          2);
    }
  }
  softmax_backward(machine, f.p, dp, ds, T(head.scale()));
  gemm(machine, ds, head.k, g.dq, Turn::none);  // dQ = dS K
  gemm(machine, ds, head.q, g.dk, Turn::a);     // dK = dS^T Q
  return g;
}

}  // namespace onepass::ladder
