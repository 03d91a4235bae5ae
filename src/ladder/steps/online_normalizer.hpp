// Online softmax (Milakov & Gimelshein 2018, Algorithm 3): the maximum and the sum in one pass, 2 reads, 1 write.
//
//   m_i = max(m_{i-1}, x_i)        l_i = l_{i-1} 2^(m_{i-1} - m_i) + 2^(x_i - m_i)
//
// A second pass is unavoidable for softmax itself: no weight is known before the last score.
#pragma once
#include "ladder/row_chunks.hpp"

namespace onepass::ladder {

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
