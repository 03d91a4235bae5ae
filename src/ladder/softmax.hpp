// Softmax of the rows of a matrix, three ways: y = 2^x / sum 2^x (scores in log2 units, as everywhere here).
//
//   naive    2 reads, 1 write: overflows to inf / inf as soon as one score passes the largest exponent
//   safe     3 reads, 1 write: the maximum first, then nothing exceeds 1
//   online   2 reads, 1 write: maximum and sum in one pass (Milakov & Gimelshein 2018, Algorithm 3)
//
// A row streams through fast memory in chunks, so its length is not bounded by M.
#pragma once
#include "ladder/tile_math.hpp"

namespace onepass::ladder {

// Columns of a row that fit in fast memory beside others: `rows` rows of so many columns are held at once.
template <class T>
Index chunk_of(const Machine<T>& machine, const Slow<T>& x, Index rows = 1) {
  return std::min(x.cols(), std::max<Index>(1, machine.fast_capacity() / (rows * static_cast<Index>(sizeof(T)))));
}

// f(chunk, first column) for every chunk of a row.
template <class T, class F>
void for_chunks(Machine<T>& machine, const Slow<T>& x, Index row, F&& f, Index rows_held = 1) {
  const Index chunk = chunk_of(machine, x, rows_held);
  for (Index col = 0; col < x.cols(); col += chunk) {
    Tile<T> t = machine.load(x, row, 1, col, std::min(chunk, x.cols() - col));
    f(t, col);
  }
}

// The last pass of each: y = 2^(x - m) / l
template <class T>
void write_softmax(Machine<T>& machine, const Slow<T>& x, Slow<T>& y, Index row, const RowState<T>& state) {
  const Rescale<T> reference{T(1), finite_ref(state.m)};
  const T inv_l = finalize(machine.counts, state).inv_l;
  for_chunks(machine, x, row, [&](Tile<T>& t, Index col) {
    each(t, 0, 2, [&](T s) { return weight(s, reference) * inv_l; });
    machine.counts.exponentials += t.cols();
    machine.store(t, y, row, col);
  });
}

template <class T>
void naive_softmax(Machine<T>& machine, const Slow<T>& x, Slow<T>& y) {
  for (Index row = 0; row < x.rows(); ++row) {
    T sum = T(0);
    for_chunks(machine, x, row, [&](Tile<T>& t, Index) {
      for (Index c = 0; c < t.cols(); ++c) sum = sum + Arith<T>::exp2(t(0, c));
      machine.counts.pointwise_flops += t.cols();
      machine.counts.exponentials += t.cols();
    });
    for_chunks(machine, x, row, [&](Tile<T>& t, Index col) {
      each(t, 0, 1, [&](T s) { return Arith<T>::exp2(s) / sum; });
      machine.counts.exponentials += t.cols();
      machine.store(t, y, row, col);
    });
  }
}

template <class T>
void safe_softmax(Machine<T>& machine, const Slow<T>& x, Slow<T>& y) {
  for (Index row = 0; row < x.rows(); ++row) {
    RowState<T> state;
    for_chunks(machine, x, row, [&](Tile<T>& t, Index) {
      state.m = Arith<T>::max(state.m, row_max(t, 0));
      machine.counts.pointwise_flops += 1;
    });
    const Rescale<T> reference{T(1), finite_ref(state.m)};
    for_chunks(machine, x, row, [&](Tile<T>& t, Index) { absorb(machine.counts, state, weigh_row(t, 0, reference)); });
    write_softmax(machine, x, y, row, state);
  }
}

template <class T>
void online_softmax(Machine<T>& machine, const Slow<T>& x, Slow<T>& y) {
  for (Index row = 0; row < x.rows(); ++row) {
    RowState<T> state;
    for_chunks(machine, x, row, [&](Tile<T>& t, Index) {
      for (Index c = 0; c < t.cols(); ++c) {  // l = l 2^(m' - m) + 2^(x - m)
        const Rescale<T> step = advance(machine.counts, state, t(0, c));
        absorb(machine.counts, state, weight(t(0, c), step));
        machine.counts.pointwise_flops += 1;
        machine.counts.exponentials += 1;
      }
    });
    write_softmax(machine, x, y, row, state);
  }
}

}  // namespace onepass::ladder
