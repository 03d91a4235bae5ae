// Standard attention, backward (Dao et al. 2022, Algorithm 3): four products and one pass over P and dP, every matrix
// in slow memory: P stored by forward, dP and dS of N^2 elements each.
#pragma once
#include "ladder/steps/standard_forward.hpp"

namespace onepass::ladder {

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
