// Standard attention: S = Q K^T, P = softmax(S), O = P V as separate kernels, every intermediate in slow memory.
//
// Forward moves Theta(N d + N^2) and keeps S and P, N^2 each; a mask is one more trip over S, dropout one over P that
// also stores the dropped mask, one byte each. Backward will read the stored P.
#pragma once
#include "ladder/gemm.hpp"
#include "ladder/head.hpp"
#include "ladder/steps/online_normalizer.hpp"

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

}  // namespace onepass::ladder
