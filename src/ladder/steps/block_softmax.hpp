// Block softmax: the states (m, l) of blocks of a row, made independently, merge in any order into the row's state.
//
// merge is associative and commutative and has an identity (no keys), so every tiling, reduction tree, split over
// workers or ring of machines in the rungs above is this rung with another order.
#pragma once
#include "algebra/ceil_div.hpp"
#include "ladder/row_chunks.hpp"

namespace onepass::ladder {

// Joins the first two: from left to right.
struct LeftToRight {
  std::pair<std::size_t, std::size_t> operator()(std::size_t) const { return {0, 1}; }
};

// pick(count) names two different states of those left; they are replaced by their merge until one is left.
template <class T, class Pick>
RowState<T> merge_all(Counts& counts, std::vector<RowState<T>> states, Pick&& pick) {
  if (states.empty()) return {};
  while (states.size() > 1) {
    auto [a, b] = pick(states.size());
    if (a > b) std::swap(a, b);
    states[a] = merge(counts, states[a], states[b]).state;
    states.erase(states.begin() + static_cast<std::ptrdiff_t>(b));
  }
  return states.front();
}

// The states of all blocks go through slow memory, as they must when different workers make them.
template <class T, class Pick = LeftToRight>
void block_softmax(Machine<T>& machine, const Slow<T>& x, Slow<T>& y, Index block, Pick&& pick = {}) {
  const Index blocks = ceil_div(x.cols(), block);
  Slow<T> partial = machine.scratch(x.rows() * blocks, 2);
  for (Index row = 0; row < x.rows(); ++row) {
    for (Index b = 0; b < blocks; ++b) {
      Tile<T> t = machine.load(x, row, 1, b * block, std::min(block, x.cols() - b * block));
      RowState<T> state;
      absorb_row(state, t, 0);
      Tile<T> states = machine.tile(1, 2);
      put_state(states, 0, state);
      machine.store(states, partial, row * blocks + b);
    }
  }
  for (Index row = 0; row < x.rows(); ++row) {
    std::vector<RowState<T>> states;
    {
      const Tile<T> loaded = machine.load(partial, row * blocks, blocks);
      for (Index b = 0; b < blocks; ++b) states.push_back(state_of(loaded, b));
    }
    write_softmax(machine, x, y, row, merge_all(machine.counts, std::move(states), pick));
  }
}

}  // namespace onepass::ladder
