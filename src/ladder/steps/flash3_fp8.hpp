// FlashAttention-3's FP8 forward, in simulation: Q, K, V and P are e4m3; scores, states and O are not.
//
// P lies in [0, 1], so the reference is lowered by 8 and weights fill e4m3's range up to 2^8 = 256; l carries the same
// factor and the division takes it out. O is kept in units of the current V block's scale, which its rescaling absorbs.
#pragma once
#include "ladder/fp8.hpp"
#include "ladder/steps/flash2_forward.hpp"

namespace onepass::ladder {

// How P V is summed: exactly enough (fp32), in the matrix unit's own accumulator all the way, or in it for `every`
// K/V tiles and then added to a second accumulator in fp32.
enum class Accumulator { fp32, truncated, truncated_then_fp32 };

struct Fp8Options {
  bool per_tensor = false;  // else a scale per tile
  bool incoherent = true;   // random signs and Hadamard on Q and K
  Accumulator accumulator = Accumulator::fp32;
  Index every = 2;
  unsigned seed = 1;
};

template <class T>
Index flash3_fp8_bytes(TileShape t, const Head<T>& head) {
  const Index working = sizeof(T), tile = t.rows * head.d() + t.keys * (head.d() + head.dv());
  const Index quantising = std::max(t.rows, t.keys) * std::max(head.d(), head.dv()) * head.q.format().bytes + working;
  return std::max(quantising, tile + t.rows * (2 * head.dv() + t.keys + 3) * working + 2 * working);
}
template <class T>
TileShape flash3_fp8_tiles(Index fast_bytes, const Head<T>& head) {
  const TileShape turned = flash2_forward_tiles(fast_bytes, head);
  return fit(turned, &TileShape::keys, fast_bytes, [&](TileShape t) { return flash3_fp8_bytes(t, head); });
}

template <class T>
Forward<T> flash3_fp8_forward(Machine<T>& machine, const Head<T>& head, TileShape shape, const Fp8Options& options) {
  if (head.dropout.active()) throw Error(ErrorCode::unsupported, "the FP8 step does not support dropout");
  const Index n = head.seq_q();
  const bool two = options.accumulator == Accumulator::truncated_then_fp32;
  const Incoherent<T> map(head.d(), options.seed);
  const Incoherent<T>* turn = options.incoherent ? &map : nullptr;
  const Quantised<T> q8 = quantise(machine, head.q, shape.rows, options.per_tensor, turn);
  const Quantised<T> k8 = quantise(machine, head.k, shape.keys, options.per_tensor, turn);
  const Quantised<T> v8 =
      quantise(machine, head.v, shape.keys, options.per_tensor, static_cast<Incoherent<T>*>(nullptr));
  Forward<T> out{Slow<T>(n, head.dv(), head.q.format()), machine.scratch(n, 1)};
  for (Index row = 0; row < n; row += shape.rows) {
    const Index rows = std::min(shape.rows, n - row);
    const Tile<T> q = machine.load(q8.values, row, rows);
    const T q_scale = q8.scale(machine, row);
    Tile<T> o = machine.tile(rows, head.dv()), unit = machine.tile(rows, head.dv()),
            states = empty_states(machine, rows);
    Index pending = 0;  // tiles summed in the matrix unit's accumulator since it was emptied
    T v_scale = T(1);   // of what o and unit hold
    const auto empty_unit = [&] {
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < o.cols(); ++c) o(r, c) = o(r, c) + std::exchange(unit(r, c), T(0));
      }
      machine.counts.pointwise_flops += rows * o.cols();
      pending = 0;
    };
    for_visible_tiles(head.mask, row, rows, shape.keys, [&](Index key, Index count, TileKind kind) {
      Tile<T> p = machine.tile(rows, count);
      const T to_log2 = q_scale * k8.scale(machine, key) * head.scale_log2();
      add_product_nt(p, q, machine.load(k8.values, key, count));
      scale(p, to_log2);
      if (kind == TileKind::partial) hide(p, head.mask, row, key);
      const T scale_now = v8.scale(machine, key), change = v_scale / scale_now;
      v_scale = scale_now;
      machine.counts.pointwise_flops += 3;  // to_log2 and change
      for (Index r = 0; r < rows; ++r) {
        RowState<T> state = state_of(states, r);
        Rescale<T> step = advance(machine.counts, state, row_max(p, r));
        step.m_ref = step.m_ref - T(8);
        absorb(machine.counts, state, weigh_row(p, r, step));
        put_state(states, r, state);
        each(p, r, 0, to_e4m3<T>);
        const T factor = step.alpha * change;
        scale_row(unit, r, factor);
        if (two) scale_row(o, r, factor);
        machine.counts.pointwise_flops += 2;
      }
      const Tile<T> v = machine.load(v8.values, key, count);
      if (options.accumulator == Accumulator::fp32)
        add_product(unit, p, v);
      else
        add_product_truncated(unit, p, v);
      if (two && ++pending >= options.every) empty_unit();
    });
    empty_unit();
    for (Index r = 0; r < rows; ++r) {  // back to V's units; l holds 2^8 times the sum, and so does O
      scale_row(o, r, v_scale);
      states(r, 0) = states(r, 0) - T(8);
    }
    machine.counts.pointwise_flops += rows;
    finish_rows(machine, states, o, out, row);
  }
  return out;
}

}  // namespace onepass::ladder
