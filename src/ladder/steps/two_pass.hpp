// Two-pass attention: no N^2 memory. Pass 1 leaves (m, l) of every row in slow memory; pass 2 makes the scores again.
//
// Each query streams the keys it sees past itself, so K moves twice per query and V once: 2 N^2 d + N^2 dv elements.
// Less memory than standard attention, far more traffic: what is missing is sharing a loaded key among queries (tiles).
#pragma once
#include "ladder/head.hpp"

namespace onepass::ladder {

// Keys held beside one query: K and V rows, one score each, the query and its output row.
template <class T>
Index keys_per_chunk(const Machine<T>& machine, const Head<T>& head) {
  const Index stored = head.k.format().bytes, working = sizeof(T);
  const Index fixed = head.d() * stored + head.dv() * working + 2 * working;
  return std::max<Index>(1, (machine.fast_capacity() - fixed) / ((head.d() + head.dv()) * stored + working));
}

// f(first key, how many) over the keys that the row sees.
template <class F>
void for_keys(const BandMask& mask, Index row, Index chunk, F&& f) {
  const Range seen = mask.keys_of(row);
  for (Index key = seen.lo; key < seen.hi; key += chunk) f(key, std::min(chunk, seen.hi - key));
}

template <class T>
Forward<T> two_pass_attention(Machine<T>& machine, const Head<T>& head) {
  Forward<T> out{Slow<T>(head.seq_q(), head.dv(), head.q.format()), machine.scratch(head.seq_q(), 2)};
  const Index chunk = keys_per_chunk(machine, head);
  for (Index row = 0; row < head.seq_q(); ++row) {
    const Tile<T> q = machine.load(head.q, row, 1);
    RowState<T> state;
    for_keys(head.mask, row, chunk, [&](Index key, Index count) {
      Tile<T> s = scores_of(machine, head, q, machine.load(head.k, key, count));
      absorb_row(state, s, 0);
    });
    Tile<T> states = machine.tile(1, 2);
    put_state(states, 0, state);
    machine.store(states, out.stats, row);
  }
  for (Index row = 0; row < head.seq_q(); ++row) {
    const Tile<T> q = machine.load(head.q, row, 1), states = machine.load(out.stats, row, 1);
    const RowState<T> state = state_of(states, 0);
    const Rescale<T> reference{T(1), finite_ref(state.m)};
    const T inv_l = finalize(machine.counts, state).inv_l;
    Tile<T> o = machine.tile(1, head.dv());
    for_keys(head.mask, row, chunk, [&](Index key, Index count) {
      Tile<T> p = scores_of(machine, head, q, machine.load(head.k, key, count));
      each(p, 0, 2, [&](T s) { return weight(s, reference) * inv_l; });
      machine.counts.exponentials += count;
      drop(p, head.dropout, row, key);
      add_product(o, p, machine.load(head.v, key, count));
    });
    machine.store(o, out.o, row);
  }
  return out;
}

}  // namespace onepass::ladder
