// y = softmax of rows, by the online softmax: every thread of a row has a state (m, l) of its numbers, and states join.
//
// A row that the registers of its threads hold is read once; a longer one twice, the second time mostly from L2. A row
// that is cut for want of rows is two launches: the pieces' states, then their results. Sums are taken in one order.
#pragma once
#include "cuda/softmax/rows.cuh"

namespace onepass {

using Numbers = Slot<kC.input>;

// A number in its scores' unit; -inf where it is hidden.
DEV float score_of(const SoftmaxParams& p, float x) {
  if constexpr (kC.scaled_first) return x == kNegInf ? x : x * p.first;
  return x;
}

struct ScoreRow {
  Row<kC.input> row;
  const unsigned char* mask;
  i64 mask_step;

  DEV bool hidden(i32 j) const { return kC.masked && !mask[j * mask_step]; }
  DEV Numbers load(i32 g) const {
    Numbers s = row.load<true>(g, kNegInf);
    if constexpr (kC.masked) {
#pragma unroll
      for (i32 i = 0; i < kNumbers; ++i) {
        const i32 j = row.cut.head + g * kNumbers + i;
        if (g < row.cut.body && j < row.cut.count && hidden(j)) s.put(i, Numbers::Format::round(kNegInf));
      }
    }
    return s;
  }
  DEV float spare(i32 j) const { return j < 0 || hidden(j) ? kNegInf : row.number(j); }
};

DEV Step<float> move_reference(RowState<float>& state, float m, float factor) {
  const float most = Arith<float>::max(state.m, m);
  return move_to(state, most, factor, reference_at(most, factor));
}

// Weights by a reference near 0 take an instruction less, and that is all there is in common rows.
DEV void absorb_numbers(const SoftmaxParams& p, RowState<float>& state, const Numbers (&s)[kSlots]) {
  float m = kNegInf;
  if constexpr (kC.scaled_first) {
#pragma unroll
    for (i32 v = 0; v < kSlots; ++v)
#pragma unroll
      for (i32 i = 0; i < kNumbers; ++i) m = fmaxf(m, score_of(p, s[v][i]));
  } else {
    m = fmaxf(m, Numbers::largest(s));
  }
  const Step<float> r = move_reference(state, m, p.factor);
  const auto add = [&](auto weight_of) {
#pragma unroll
    for (i32 v = 0; v < kSlots; ++v) {
#pragma unroll
      for (i32 i = 0; i < kNumbers; ++i) absorb(state, weight_of(score_of(p, s[v][i])));
    }
  };
  if (r.before == 0.0f)
    add([&](float x) { return fused_weight(x, p.factor, r); });
  else
    add([&](float x) { return weight(x, p.factor, r); });
}

DEV RowState<float> natural_of(const RowState<float>& s, const SoftmaxParams& p) {
  if constexpr (kC.log)
    return {s.m * p.unit, s.l};
  else
    return to_natural(s, p.factor, p.unit);
}

// From a row's state, or the LSE that is given, to its y.
struct Finish {
  Step<float> step;
  float inverse, before, after;
  bool empty;

  DEV Finish(const SoftmaxParams& p, const RowState<float>& s) {
    empty = s.l == 0.0f;
    step = reference_at(s.m, p.factor);
    inverse = inverse_sum(s);
    before = -finite_ref(s.m);
    after = -natural_log(s.l);
  }
  DEV explicit Finish(float lse) : step{}, inverse(1.0f), before(0.0f), after(-lse), empty(lse == kNegInf) {}

  // True if fast() is right: hidden entries weigh 0 in it anyway.
  DEV bool common() const { return !kC.log && !kC.row_lse && step.before == 0.0f && inverse == inverse; }
  DEV float fast(const SoftmaxParams& p, float x) const { return fused_weight(x, p.factor, step) * inverse; }
  DEV float operator()(const SoftmaxParams& p, float x) const {
    constexpr float kNothing = kC.log ? kNegInf : 0.0f;
    float y;
    if constexpr (kC.log)
      y = fmaf(x + before, p.unit, after);
    else if constexpr (kC.row_lse)
      y = natural_weight(fmaf(x, p.unit, after));
    else
      y = weight(x, p.factor, step) * inverse;
    return empty || x == kNegInf ? kNothing : y;
  }
};

template <class Result>
DEV void write_y(const SoftmaxParams& p, const Row<kC.output>& y, const Result& result, i32 g, const Numbers& s) {
  float x[kNumbers];
  for_known<kNumbers>([&](auto i) { x[i.value] = result(score_of(p, s.template again<i.value>())); });
  Slot<kC.output> out;
  out.pack(x);
  y.store(g, out);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kC.block(), onepass::kC.resident() / onepass::kC.block())
    softmax_rows(const __grid_constant__ onepass::SoftmaxParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  const i32 thread = thread_of_row();
  const Task task(p);
  const i32 from = task.piece * p.piece;
  const RowIndex index(p, task.row);

  const i64 at = index.in(p.x) + from * p.x.stride[3];
  const RowCut cut(reinterpret_cast<u64>(static_cast<const Numbers::Raw*>(p.x.data) + at), sizeof(Numbers::Raw),
                   kC.part == SoftmaxPart::whole ? p.n : min(p.piece, p.n - from));
  const ScoreRow x{Row<kC.input>(p.x, at, cut),
                   static_cast<const unsigned char*>(p.mask.data) + index.in(p.mask) + from * p.mask.stride[3],
                   p.mask.stride[3]};
  const Row<kC.output> y(p.result, index.in(p.result) + from * p.result.stride[3], cut);
  const i32 chunks = kC.kept ? 1 : ceil_div(cut.body, kSlots * kThreads);
  const auto slot_of = [&](i32 chunk, i32 v) { return (chunk * kSlots + v) * kThreads + thread; };

  Numbers s[kSlots];
  float spare[kSpare + 1];
  const auto read = [&](i32 chunk) {
#pragma unroll
    for (i32 v = 0; v < kSlots; ++v) s[v] = x.load(slot_of(chunk, v));
  };
  if constexpr (kC.kept) read(0);
#pragma unroll
  for (i32 k = 0; k < kSpare; ++k) spare[k] = score_of(p, x.spare(cut.spare(thread, k)));
  RowState<float> state;
  if constexpr (!kC.row_lse && kC.part != SoftmaxPart::finish) {
    for (i32 chunk = 0; chunk < chunks; ++chunk) {
      if constexpr (!kC.kept) read(chunk);
      absorb_numbers(p, state, s);
    }
#pragma unroll
    for (i32 k = 0; k < kSpare; ++k)
      absorb(state, weight(spare[k], p.factor, move_reference(state, spare[k], p.factor)));
  }
  if constexpr (kC.part == SoftmaxPart::finish && !kC.row_lse) {
    for (i32 i = thread; i < p.pieces; i += kThreads) {
      const SoftmaxState one = p.states[task.row * static_cast<u32>(p.pieces) + static_cast<u32>(i)];
      const float m = Arith<float>::max(state.m, one.m);
      state = merge_by(state, RowState<float>{one.m, one.l}, m, p.factor, reference_at(m, p.factor)).state;
    }
  }
  if constexpr (!kC.row_lse) {
    const SoftmaxState all = row_join(shared_address(smem), {state.m, state.l}, p.factor);
    state = {all.m, all.l};
  }
  if constexpr (kC.part == SoftmaxPart::states) {
    if (thread == 0 && task.real) p.states[task.number] = {state.m, state.l};
  } else {
    if (p.lse.data && thread == 0 && task.piece == 0 && task.real)
      const_cast<float*>(static_cast<const float*>(p.lse.data))[index.in(p.lse)] =
          finalize_natural(natural_of(state, p)).lse;
    if constexpr (kC.write) {
      const Finish finish = [&] {
        if constexpr (kC.row_lse)
          return Finish(static_cast<const float*>(p.row_lse.data)[index.in(p.row_lse)]);
        else
          return Finish(p, state);
      }();
      if (!task.real) return;
      for (i32 chunk = 0; chunk < chunks; ++chunk) {
        if constexpr (!kC.kept) read(chunk);
#pragma unroll
        for (i32 v = 0; v < kSlots; ++v) {
          if (finish.common())
            write_y(p, y, [&](float x) { return finish.fast(p, x); }, slot_of(chunk, v), s[v]);
          else
            write_y(p, y, [&](float x) { return finish(p, x); }, slot_of(chunk, v), s[v]);
        }
      }
#pragma unroll
      for (i32 k = 0; k < kSpare; ++k)
        if (const i32 j = cut.spare(thread, k); j >= 0) y.put(j, finish(p, spare[k]));
    }
  }
}
