// Arithmetic on tiles in fast memory. Every function adds what it computes to the machine's counts.
#pragma once
#include <vector>

#include "algebra/philox.hpp"
#include "algebra/scalar.hpp"
#include "ladder/meter.hpp"

namespace onepass::ladder {

// c[i, :] += sum_k a(i, k) * b[k, :]: the inner loop runs along rows, four terms at a time, so compilers vectorise it.
template <class T, class A>
void add_rows(Tile<T>& c, Index terms, const A& a, const T* b, Index stride) {
  const Index n = c.cols();
  for (Index i = 0; i < c.rows(); ++i) {
    T* ci = c.row(i);
    Index k = 0;
    for (; k + 4 <= terms; k += 4) {
      const T a0 = a(i, k), a1 = a(i, k + 1), a2 = a(i, k + 2), a3 = a(i, k + 3);
      const T *b0 = b + k * stride, *b1 = b0 + stride, *b2 = b1 + stride, *b3 = b2 + stride;
      for (Index j = 0; j < n; ++j) ci[j] = ci[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
    }
    for (; k < terms; ++k) {
      const T ak = a(i, k);
      const T* bk = b + k * stride;
      for (Index j = 0; j < n; ++j) ci[j] = ci[j] + ak * bk[j];
    }
  }
  c.counts().matmul_flops += 2 * c.rows() * n * terms;
}

// Zeros in slow memory, tile_rows rows at a time.
template <class T>
void clear(Machine<T>& machine, Slow<T>& x, Index tile_rows) {
  for (Index row = 0; row < x.rows(); row += tile_rows)
    machine.store(machine.tile(std::min(tile_rows, x.rows() - row), x.cols()), x, row);
}

// c += a b, c += a b^T, c += a^T b. (Matrix units read their operands in either order, so turning b costs nothing.)
template <class T>
void add_product(Tile<T>& c, const Tile<T>& a, const Tile<T>& b) {
  add_rows(c, a.cols(), [&](Index i, Index k) { return a(i, k); }, b.row(0), b.cols());
}
template <class T>
void add_product_nt(Tile<T>& c, const Tile<T>& a, const Tile<T>& b) {
  std::vector<T> turned(static_cast<std::size_t>(b.rows() * b.cols()));
  for (Index j = 0; j < b.rows(); ++j) {
    for (Index k = 0; k < b.cols(); ++k) turned[static_cast<std::size_t>(k * b.rows() + j)] = b(j, k);
  }
  add_rows(c, a.cols(), [&](Index i, Index k) { return a(i, k); }, turned.data(), b.rows());
}
template <class T>
void add_product_tn(Tile<T>& c, const Tile<T>& a, const Tile<T>& b) {
  add_rows(c, a.rows(), [&](Index i, Index k) { return a(k, i); }, b.row(0), b.cols());
}

// Pointwise: f(element) for a row, `flops` operations each.
template <class T, class F>
void each(Tile<T>& t, Index r, Index flops, F&& f) {
  T* x = t.row(r);
  for (Index c = 0; c < t.cols(); ++c) x[c] = f(x[c]);
  t.counts().pointwise_flops += flops * t.cols();
}
template <class T>
void scale_row(Tile<T>& t, Index r, T factor) {
  each(t, r, 1, [factor](T x) { return x * factor; });
}
template <class T>
void scale(Tile<T>& t, T factor) {
  for (Index r = 0; r < t.rows(); ++r) scale_row(t, r, factor);
}

template <class T>
void multiply_row(Tile<T>& t, const Tile<T>& by, Index r) {
  for (Index c = 0; c < t.cols(); ++c) t(r, c) = t(r, c) * by(r, c);
  t.counts().pointwise_flops += t.cols();
}

template <class T>
T row_max(const Tile<T>& t, Index r) {
  T m = Arith<T>::neg_inf();
  for (Index c = 0; c < t.cols(); ++c) m = Arith<T>::max(m, t(r, c));
  t.counts().pointwise_flops += t.cols();
  return m;
}
// sum_c a(r, c) * b(r, c)
template <class T>
T row_dot(const Tile<T>& a, const Tile<T>& b, Index r) {
  T sum = T(0);
  for (Index c = 0; c < a.cols(); ++c) sum = sum + a(r, c) * b(r, c);
  a.counts().pointwise_flops += 2 * a.cols();
  return sum;
}
// c(r, 0) += sum_c a(r, c)
template <class T>
void add_row_sum(Tile<T>& c, const Tile<T>& a, Index r) {
  for (Index i = 0; i < a.cols(); ++i) c(r, 0) = c(r, 0) + a(r, i);
  a.counts().pointwise_flops += a.cols();
}
// t(r, :) -= factor * by(r, :)
template <class T>
void subtract_scaled_row(Tile<T>& t, T factor, const Tile<T>& by, Index r) {
  for (Index c = 0; c < t.cols(); ++c) t(r, c) = t(r, c) - factor * by(r, c);
  t.counts().pointwise_flops += 2 * t.cols();
}
// Scores become weights 2^(s - m_ref); returns their sum.
template <class T>
T weigh_row(Tile<T>& t, Index r, const Rescale<T>& reference) {
  T sum = T(0);
  for (Index c = 0; c < t.cols(); ++c) sum = sum + (t(r, c) = weight(t(r, c), reference));
  t.counts().pointwise_flops += 2 * t.cols();
  t.counts().exponentials += t.cols();
  return sum;
}

// The verbs of algebra/online_softmax.hpp on states kept as rows (m, l) of a tile.
template <class T>
RowState<T> state_of(const Tile<T>& states, Index r) {
  return {states(r, 0), states(r, 1)};
}
template <class T>
void put_state(Tile<T>& states, Index r, const RowState<T>& s) {
  states(r, 0) = s.m;
  states(r, 1) = s.l;
}
template <class T>
Tile<T> empty_states(Machine<T>& machine, Index rows) {
  Tile<T> states = machine.tile(rows, 2);
  for (Index r = 0; r < rows; ++r) put_state(states, r, RowState<T>{});
  return states;
}

// The same verbs with their operations counted.
template <class T>
Rescale<T> advance(Counts& counts, RowState<T>& s, T tile_max) {
  counts.pointwise_flops += 3;  // max, difference, l * alpha
  counts.exponentials += 1;
  return onepass::advance(s, tile_max);
}
template <class T>
void absorb(Counts& counts, RowState<T>& s, T tile_sum) {
  counts.pointwise_flops += 1;
  onepass::absorb(s, tile_sum);
}
template <class T>
Merged<T> merge(Counts& counts, const RowState<T>& a, const RowState<T>& b) {
  counts.pointwise_flops += 6;  // max, two differences, two products, a sum
  counts.exponentials += 2;
  return onepass::merge(a, b);
}
template <class T>
Final<T> finalize(Counts& counts, const RowState<T>& s) {
  counts.pointwise_flops += 3;  // 1 / l, m + log2 l, * ln 2
  counts.exponentials += 1;
  return onepass::finalize(s);
}

// The one-screen heart of every tiled rung: row r of a tile of scores joins the state; scores become weights.
template <class T>
T absorb_row(RowState<T>& s, Tile<T>& scores, Index r) {
  const Rescale<T> step = advance(scores.counts(), s, row_max(scores, r));
  absorb(scores.counts(), s, weigh_row(scores, r, step));
  return step.alpha;
}

// Adds 0 where query i sees key j, -inf elsewhere; the tile's corner is (row, key).
template <class T>
void hide(Tile<T>& scores, const BandMask& mask, Index row, Index key) {
  for (Index r = 0; r < scores.rows(); ++r) {
    for (Index c = 0; c < scores.cols(); ++c) {
      scores(r, c) = scores(r, c) + (mask.visible(row + r, key + c) ? T(0) : Arith<T>::neg_inf());
    }
  }
  scores.counts().pointwise_flops += scores.rows() * scores.cols();
}
// Multiplies by 0 or 1 / (1 - p); the mask is made again from its counter wherever it is needed.
template <class T>
void drop(Tile<T>& t, const Dropout& dropout, Index row, Index key) {
  if (!dropout.active()) return;
  for (Index r = 0; r < t.rows(); ++r) {
    for (Index c = 0; c < t.cols(); ++c) {
      t(r, c) = t(r, c) * T(dropout.factor(0, 0, static_cast<unsigned>(row + r), static_cast<unsigned>(key + c)));
    }
  }
  t.counts().pointwise_flops += t.rows() * t.cols();
}

}  // namespace onepass::ladder
