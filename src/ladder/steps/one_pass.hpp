// One-pass attention: the step that gives FlashAttention, one key at a time and one pass over K and V.
//
//   o_i = o_{i-1} (l_{i-1} / l_i) 2^(m_{i-1} - m_i) + (2^(x_i - m_i) / l_i) v_i
//
// There is no one-pass softmax, since every weight depends on all scores; but O does not keep the weights, and a scalar
// corrects it. The price is dv multiplications per key, which FlashAttention-2 will take out of the loop.
#pragma once
#include "ladder/steps/two_pass.hpp"

namespace onepass::ladder {

template <class T>
Forward<T> one_pass_attention(Machine<T>& machine, const Head<T>& head) {
  Forward<T> out{Slow<T>(head.seq_q(), head.dv(), head.q.format()), machine.scratch(head.seq_q(), 1)};
  const Index chunk = keys_per_chunk(machine, head);
  Counts& counts = machine.counts;
  for (Index row = 0; row < head.seq_q(); ++row) {
    const Tile<T> q = machine.load(head.q, row, 1);
    Tile<T> o = machine.tile(1, head.dv());
    RowState<T> state;
    for_keys(head.mask, row, chunk, [&](Index key, Index count) {
      const Tile<T> v = machine.load(head.v, key, count);
      const Tile<T> x = scores_of(machine, head, q, machine.load(head.k, key, count));
      for (Index i = 0; i < count; ++i) {
        const Rescale<T> step = advance(counts, state, x(0, i));
        const T old = state.l;  // l_{i-1} 2^(m_{i-1} - m_i)
        const T w = weight(x(0, i), step);
        absorb(counts, state, w);
        const T inv_l = inverse_sum(state);
        scale_row(o, 0, old * inv_l);
        T share = w * inv_l;
        counts.pointwise_flops += 4;  // x - m, 1 / l and two products
        counts.exponentials += 1;
        if (head.dropout.active()) {
          share = share * T(head.dropout.factor(0, 0, static_cast<unsigned>(row), static_cast<unsigned>(key + i)));
          counts.pointwise_flops += 1;
        }
        for (Index c = 0; c < o.cols(); ++c) o(0, c) = o(0, c) + share * v(i, c);
        counts.matmul_flops += 2 * o.cols();
      }
    });
    machine.store(o, out.o, row);
    Tile<T> lse = machine.tile(1, 1);
    lse(0, 0) = finalize(counts, state).lse;
    machine.store(lse, out.stats, row);
  }
  return out;
}

}  // namespace onepass::ladder
