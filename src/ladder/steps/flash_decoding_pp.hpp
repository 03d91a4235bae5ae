// FlashDecoding++ (Hong et al. 2023), softmax with one shared maximum: any phi gives the same softmax,
//
//   sum_j 2^(s_j - phi) v_j / sum_j 2^(s_j - phi)
//
// so splits need no maximum and merge by plain addition. It is exact while the numbers stay in range, which is checked
// at both ends: a score far above phi would overflow, and a row whose largest score is far below phi would lose its
// weights to underflow. A row that leaves the range is computed again with its own maximum, the synchronised way.
#pragma once
#include "algebra/ceil_div.hpp"
#include "ladder/steps/flash_decoding.hpp"

namespace onepass::ladder {

// In log2 units: a row is good while low < max(s) - phi < high. Within +-60 every fp32 weight that matters (2^-24 of
// the largest, and sums of 2^40 keys) is a normal number.
struct SafeRange {
  double low = -60, high = 60;
};

template <class T>
struct UnifiedMax {
  Forward<T> out;
  Index recomputed_rows = 0;
};

// The synchronised softmax for one row over all its keys.
template <class T>
void recompute_row(Machine<T>& machine, const Head<T>& head, Index row, Index tile_keys, Forward<T>& out) {
  const Tile<T> q = machine.load(head.q, row, 1);
  Tile<T> o = machine.tile(1, head.dv()), states = empty_states(machine, 1);
  const Range seen = head.mask.keys_of(row);
  for (Index key = seen.lo; key < seen.hi; key += tile_keys) {
    const Index count = std::min(tile_keys, seen.hi - key);
    const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
    Tile<T> p = scores_of(machine, head, q, k);
    flash2_step(head, states, o, p, v, row, key);
  }
  finish_rows(machine, states, o, out, row);
}

template <class T>
UnifiedMax<T> flash_decoding_pp(Machine<T>& machine, const Head<T>& head, Index splits, Index tile_keys, double phi,
                                SafeRange range = {}) {
  const Index n = head.seq_q(), keys = head.seq_k(), chunk = std::max<Index>(1, ceil_div(keys, splits));
  const Rescale<T> shared{T(1), T(phi)};
  Slow<T> sums = machine.scratch(splits * n, head.dv()), stats = machine.scratch(splits * n, 2);  // (max, l)
  for (Index split = 0; split < splits; ++split) {  // in parallel on a GPU
    const Tile<T> q = machine.load(head.q, 0, n);
    Tile<T> o = machine.tile(n, head.dv()), seen = empty_states(machine, n);
    const Index end = std::min(keys, (split + 1) * chunk);
    for (Index key = split * chunk; key < end; key += tile_keys) {
      const Index count = std::min(tile_keys, end - key);
      const TileKind kind = head.mask.classify(0, n, key, key + count);
      if (kind == TileKind::skip) continue;
      const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
      Tile<T> p = scores_of(machine, head, q, k);
      if (kind == TileKind::partial) hide(p, head.mask, 0, key);
      for (Index r = 0; r < n; ++r) {
        RowState<T> state = state_of(seen, r);
        state.m = Arith<T>::max(state.m, row_max(p, r));  // for the check only: nothing is rescaled by it
        absorb(machine.counts, state, weigh_row(p, r, shared));
        machine.counts.pointwise_flops += 1;
        put_state(seen, r, state);
      }
      drop(p, head.dropout, 0, key);
      add_product(o, p, v);
    }
    machine.store(o, sums, split * n);
    machine.store(seen, stats, split * n);
  }
  UnifiedMax<T> result{{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 1)}, 0};
  for (Index row = 0; row < n; ++row) {
    Tile<T> o = machine.tile(1, head.dv()), states = machine.tile(1, 2);
    RowState<T> all;
    for (Index split = 0; split < splits; ++split) {
      const Tile<T> part = machine.load(sums, split * n + row, 1), stat = machine.load(stats, split * n + row, 1);
      all = {Arith<T>::max(all.m, stat(0, 0)), all.l + stat(0, 1)};
      for (Index c = 0; c < o.cols(); ++c) o(0, c) = o(0, c) + part(0, c);
      machine.counts.pointwise_flops += 2 + o.cols();
    }
    const double top = static_cast<double>(all.m), above = top - phi;
    const bool empty = top == Arith<double>::neg_inf();  // the row sees no key
    if (!empty && !(above > range.low && above < range.high)) {
      ++result.recomputed_rows;
      recompute_row(machine, head, row, tile_keys, result.out);
      continue;
    }
    put_state(states, 0, RowState<T>{empty ? all.m : T(phi), all.l});
    finish_rows(machine, states, o, result.out, row);
  }
  return result;
}

}  // namespace onepass::ladder
