// Safe softmax: the row's maximum first, then y = 2^(x - m) / sum 2^(x - m). No weight exceeds 1 and the largest is 1,
// so nothing overflows and the sum is never 0. The price is a third read of the row. 3 reads, 1 write.
#pragma once
#include "ladder/row_chunks.hpp"

namespace onepass::ladder {

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

}  // namespace onepass::ladder
