// Naive softmax of the rows of a matrix: y = 2^x / sum 2^x (scores in log2 units, as everywhere here). 2 reads, 1
// write.
//
// One score above the largest exponent (128 in fp32) makes it inf / inf; a row far below the smallest makes it 0 / 0.
#pragma once
#include "ladder/row_chunks.hpp"

namespace onepass::ladder {

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

}  // namespace onepass::ladder
