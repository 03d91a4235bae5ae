// FlashAttention-3, forward (Shah et al. 2024): the matrix unit never waits for the softmax unit, if it can be helped.
//
//   serial      S_j, softmax, O += P_j V_j: one after the other                    (FlashAttention-2 on one warpgroup)
//   two_stage   S_{j+1} and O += P_j V_j are issued together; the softmax of S_{j+1} runs under P_j V_j  (Algorithm 2)
//   ping_pong   two warpgroups take turns: one's softmax runs under the other's products          (section 3.1)
//
// The arithmetic is FlashAttention-2's; the schedule is explicit and its timeline simulated from metered work. The
// warpgroups of a block share each K/V tile, so traffic is FlashAttention-2's with Br = warpgroups * rows.
#pragma once
#include "ladder/steps/flash2_forward.hpp"
#include "ladder/timeline.hpp"

namespace onepass::ladder {

enum class Schedule { serial, two_stage, ping_pong };

// On chip: per warpgroup Q, O, two tiles of scores and (m, l, alpha); K, V and the V of the tile before.
template <class T>
Index flash3_forward_bytes(TileShape t, Index warpgroups, const Head<T>& head) {
  const Index stored = head.q.format().bytes, working = sizeof(T);
  return warpgroups * t.rows * (head.d() * stored + (head.dv() + 2 * t.keys + 3) * working) +
         t.keys * (head.d() + 2 * head.dv()) * stored;
}
template <class T>
TileShape flash3_forward_tiles(Index fast_bytes, Index warpgroups, const Head<T>& head) {
  const TileShape turned = flash2_forward_tiles(fast_bytes, head);
  return fit({std::max<Index>(1, turned.rows / warpgroups), turned.keys}, &TileShape::keys, fast_bytes,
             [&](TileShape t) { return flash3_forward_bytes(t, warpgroups, head); });
}

// One warpgroup: its rows, their state, and the weights that wait for their product with V.
template <class T>
struct Warpgroup {
  Index row;
  Tile<T> q, o, states;
  std::vector<Tile<T>> weights{};  // at most one
  double product_done = 0;
};

// Scores become weights; alphas rescale O once its running product is done.
template <class T>
std::vector<T> softmax_tile(const Head<T>& head, Warpgroup<T>& w, Tile<T>& p, Index key, TileKind kind) {
  if (kind != TileKind::full) hide(p, head.mask, w.row, key);  // another warpgroup of the block may see the tile
  scale(p, head.scale_log2());
  std::vector<T> alpha;
  for (Index r = 0; r < p.rows(); ++r) {
    RowState<T> state = state_of(w.states, r);
    alpha.push_back(absorb_row(state, p, r));
    put_state(w.states, r, state);
  }
  drop(p, head.dropout, w.row, key);
  return alpha;
}

template <class T>
Forward<T> flash3_forward(Machine<T>& machine, const Head<T>& head, TileShape shape, Index warpgroups,
                          Schedule schedule, Timeline& time) {
  const Index n = head.seq_q(), block = shape.rows * warpgroups;
  Forward<T> out{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 1)};
  for (Index first = 0; first < n; first += block) {
    std::vector<Warpgroup<T>> groups;
    for (Index row = first; row < std::min(n, first + block); row += shape.rows) {
      const Index rows = std::min(shape.rows, n - row);
      groups.push_back(
          {row, machine.load(head.q, row, rows), machine.tile(rows, head.dv()), empty_states(machine, rows)});
    }
    std::vector<Tile<T>> v_before;  // of the tile whose weights wait
    const auto product = [&](std::size_t g) {
      Warpgroup<T>& w = groups[g];
      if (!w.weights.empty()) w.product_done = time.issue(g, [&] { add_product(w.o, w.weights[0], v_before[0]); });
    };
    const Index rows_of_block = std::min(block, n - first);
    for_visible_tiles(head.mask, first, rows_of_block, shape.keys, [&](Index key, Index count, TileKind) {
      const Tile<T> k = machine.load(head.k, key, count);
      Tile<T> v = machine.load(head.v, key, count);
      for (std::size_t g = 0; g < groups.size(); ++g) {
        Warpgroup<T>& w = groups[g];
        const TileKind kind = head.mask.classify(w.row, w.row + w.q.rows(), key, key + count);
        if (schedule == Schedule::serial) product(g), time.wait(g, w.product_done);
        Tile<T> p = machine.tile(w.q.rows(), count);
        const double scored = time.issue(g, [&] { add_product_nt(p, w.q, k); });
        if (schedule != Schedule::serial) product(g);
        time.wait(g, schedule == Schedule::ping_pong ? std::max(scored, w.product_done) : scored);
        std::vector<T> alpha;
        time.softmax(g, [&] { alpha = softmax_tile(head, w, p, key, kind); });
        time.wait(g, w.product_done);
        time.softmax(g, [&] {
          for (Index r = 0; r < w.o.rows(); ++r) scale_row(w.o, r, alpha[static_cast<std::size_t>(r)]);
        });
        w.weights.clear();
        w.weights.push_back(std::move(p));
      }
      v_before.clear();
      v_before.push_back(std::move(v));
    });
    for (std::size_t g = 0; g < groups.size(); ++g) {
      product(g);
      time.wait(g, groups[g].product_done);
      groups[g].weights.clear();
      time.softmax(g, [&] { finish_rows(machine, groups[g].states, groups[g].o, out, groups[g].row); });
    }
  }
  return out;
}

}  // namespace onepass::ladder
