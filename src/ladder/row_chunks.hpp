// Rows of scores streaming through fast memory in chunks, so that their length is not bounded by M.
#pragma once
#include "ladder/tile_math.hpp"

namespace onepass::ladder {

// Columns of a row that fit in fast memory beside others: `rows` rows of that many columns are held at once.
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

}  // namespace onepass::ladder
