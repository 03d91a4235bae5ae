// The end of a tile but for the way of O to memory: tO / l - mu O, the LSE and its derivative, and rows that are
// computed again.
#pragma once
#include "cuda/jvp/row.cuh"
#include "cuda/jvp/softmax.cuh"

namespace onepass::cuda::jvp {

// The final states of a lane's two rows. inv: of O, with dropout's factor; mu: of the softmax, with the sink.
struct JvpFinal {
  float inv[2], lse[2], mu[2];
  bool right[2];
};
DEV JvpFinal finalize_both(const JvpParams& p, const WorkTile& x, const JvpRows& rows) {
  JvpFinal end;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RowState<float> state = {rows.weights.state[i].m, quad_sum(rows.weights.state[i].l)};
    const FinalRow row = finalize_row(p, x.head, state, kRoundedSums ? quad_sum(rows.weights.norm[i]) : 0.0f);
    const float mu = quad_sum(rows.mu[i]) * row.share / state.l;
    end.inv[i] = row.inv, end.lse[i] = row.lse;
    end.mu[i] = (state.l == 0.0f ? 0.0f : mu) + sink_tangent(p, x.head, row.lse);
    end.right[i] = unit_of(p).right(state);
  }
  return end;
}

// Sums become O and its derivative. A bit for each of the lane's rows that is to be computed again: what is not finite
// may come from a hidden key. A row whose sum of weights is NaN is right (is_rightly_lost).
template <int N>
DEV u32 normalize_both(float (&o)[N], float (&t)[N], const JvpFinal& end) {
  float probe[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) probe[i] = fmaf(end.mu[i], 0.0f, end.lse[i] == kNegInf ? 0.0f : end.lse[i] * 0.0f);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int i = row_of_element(j);
    o[j] *= end.inv[i];
    t[j] = fmaf(-end.mu[i], o[j], t[j] * end.inv[i]);
    probe[i] = fmaf(t[j], 0.0f, fmaf(o[j], 0.0f, probe[i]));
  }
  u32 wrong = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (is_rightly_lost(end.inv[i])) continue;
    wrong |= !end.right[i] || probe[i] != 0.0f ? 1u << i : 0u;
  }
  return wrong;
}

DEV void write_both_lses(const JvpParams& p, const WorkTile& x, const FragmentRows& rows, const JvpFinal& end) {
  if (opaque_thread() % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) write_lse(p, x, rows.row[i], end.lse[i]), write_tlse(p, x, rows.row[i], end.mu[i]);
}

// A fragment's columns of the tensor, by plain stores to rows of the sequence. column(j, quad): of an element.
template <int N, class Column>
DEV void store_elements(void* to, const long long (&stride)[3], const WorkTile& x, const FragmentRows& rows,
                        const float (&o)[N], const Column& column) {
  using Format = ElementOf<forward_features.output>::Format;
  const u32 quad = opaque_thread() % 4;
#pragma unroll
  for (i32 j = 0; j < N; ++j) {
    const i32 row = rows.row[row_of_element(j)], d = column(j, quad);
    if (row < x.seq_q && d < features.dim_v)
      static_cast<Format::Raw*>(to)[row_place(stride, x, row) + d] = Format::round(o[j]);
  }
}

// Computes rows again of which a lane has said so: bit i of `wrong` for row g + 8 i.
DEV void compute_again(const JvpParams& p, const WorkTile& x, const HeadScores& scores, i32 first, u32 wrong) {
#pragma unroll 1
  for (i32 row = 0; row < 16; ++row) {
    const bool own = static_cast<i32>(opaque_thread() % 32) / 4 == row % 8;
    const bool again = __any_sync(0xffffffffu, own && (wrong >> row / 8 & 1) != 0);
    if (again && first + row < x.seq_q) compute_row(p, x, scores, first + row);
  }
}

}  // namespace onepass::cuda::jvp
