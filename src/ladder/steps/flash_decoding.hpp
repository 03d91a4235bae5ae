// Flash-Decoding (Dao, Haziza, Massa, Sizov 2023): few queries, many keys: the keys are split among workers.
//
// Each split leaves its normalised O and its LSE in slow memory; a second kernel merges them by the algebra. Traffic:
// K and V once, Q once per split, and 2 splits N (dv + 1) for the partials: nothing beside K and V when N is 1.
#pragma once
#include "algebra/ceil_div.hpp"
#include "ladder/steps/flash2_forward.hpp"

namespace onepass::ladder {

// One query tile of all rows per split; `keys` per K/V tile.
template <class T>
Index decode_tile_keys(Index fast_bytes, const Head<T>& head) {
  const TileShape t = fit({head.seq_q(), std::max<Index>(1, head.seq_k())}, &TileShape::keys, fast_bytes,
                          [&](TileShape shape) { return flash2_forward_bytes(shape, head); });
  return t.keys;
}

template <class T>
Forward<T> flash_decoding(Machine<T>& machine, const Head<T>& head, Index splits, Index tile_keys) {
  const Index n = head.seq_q(), keys = head.seq_k(), chunk = std::max<Index>(1, ceil_div(keys, splits));
  Forward<T> partial{machine.scratch(splits * n, head.dv()), machine.scratch(splits * n, 1)};
  for (Index split = 0; split < splits; ++split) {  // in parallel on a GPU
    const Tile<T> q = machine.load(head.q, 0, n);
    Tile<T> o = machine.tile(n, head.dv()), states = empty_states(machine, n);
    const Index end = std::min(keys, (split + 1) * chunk);
    for (Index key = split * chunk; key < end; key += tile_keys) {
      const Index count = std::min(tile_keys, end - key);
      const TileKind kind = head.mask.classify(0, n, key, key + count);
      if (kind == TileKind::skip) continue;
      const Tile<T> k = machine.load(head.k, key, count), v = machine.load(head.v, key, count);
      Tile<T> p = scores_of(machine, head, q, k);
      if (kind == TileKind::partial) hide(p, head.mask, 0, key);
      flash2_step(head, states, o, p, v, 0, key);
    }
    finish_rows(machine, states, o, partial, split * n);
  }
  Forward<T> out{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 1)};
  for (Index row = 0; row < n; ++row) {
    Tile<T> o = machine.tile(1, head.dv()), states = empty_states(machine, 1);
    RowState<T> state;
    for (Index split = 0; split < splits; ++split) {  // in order: repeatable
      Tile<T> part = machine.load(partial.o, split * n + row, 1);
      const Tile<T> lse = machine.load(partial.stats, split * n + row, 1);
      const Merged<T> both = merge(machine.counts, state, from_lse(lse(0, 0)));
      machine.counts.pointwise_flops += 1;  // LSE into log2 units
      state = both.state;
      scale_row(o, 0, both.alpha_a);
      scale_row(part, 0, both.alpha_b);
      for (Index c = 0; c < o.cols(); ++c) o(0, c) = o(0, c) + part(0, c);
      machine.counts.pointwise_flops += o.cols();
    }
    put_state(states, 0, state);
    finish_rows(machine, states, o, out, row);
  }
  return out;
}

}  // namespace onepass::ladder
