// The end of a tile: tO / l - mu O, the LSE and its derivative, and rows that are computed again.
#pragma once
#include "cuda/jvp/products.cuh"
#include "cuda/jvp/row.cuh"
#include "cuda/jvp/softmax.cuh"

namespace onepass::cuda::jvp {

using Scores = JvpScores<(features.dim_v <= 64)>;

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

template <class Format>
DEV void stage_pair(u32 to, float a, float b) {
  if constexpr (Format::kPacked == 2)
    store_word(to, static_cast<i32>(Format::pack(a, b)));
  else
    store_pair(to, a, b);
}

// A fragment's row to global memory, through this warp's rows of the Q tile's memory: all reads of Q are done.
DEV void store_staged(u32 stage, void* to, const long long (&stride)[3], const WorkTile& x,
                      const float (&o)[kRowTiles][kOutSums]) {
  constexpr u32 kPitch = kLayout.v_pitch;
  constexpr i32 kInChunk = 16 / kElementBytes,
                kChunks = round_up(features.dim_v, kInChunk) / kInChunk;  // staged: whole
  constexpr i32 kOwnChunks = kShare == 1 ? kChunks : kOutSums / kInChunk * 2;
  const u32 lane = opaque_thread() % 32, own_first = sm80::own_rows();
  stage += own_first * kPitch;
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 2) {
      const u32 row = 16 * r + 8 * (j >> 1 & 1) + lane / 4;
      const u32 byte = lane % 4 * 2 * kElementBytes, chunk = sm80::own_column(j / 4 * 4, 0) / kInChunk + byte / 16;
      stage_pair<Element>(stage + swizzled(row, chunk, kPitch) + byte % 16, o[r][j], o[r][j + 1]);
    }
  }
  __syncwarp();
  const i32 first = x.row + static_cast<i32>(own_first);
#pragma unroll 4
  for (i32 at = static_cast<i32>(lane); at < kWarpRows * kOwnChunks; at += 32) {
    const i32 row = at / kOwnChunks, own = at % kOwnChunks;
    const i32 chunk = kShare == 1 ? own : (own / 2 * kShare + static_cast<i32>(sm80::own_part())) * 2 + own % 2;
    if (first + row >= x.seq_q) break;
    if (kShare > 1 && chunk >= kChunks) continue;
    u32 w[4];
    load_four(stage + swizzled(row, chunk, kPitch), w[0], w[1], w[2], w[3]);
    store_global(static_cast<char*>(to) + kElementBytes * (row_place(stride, x, first + row) + kInChunk * chunk), w);
  }
}
DEV void store_elements(void* to, const long long (&stride)[3], const WorkTile& x, const FragmentRows& rows,
                        const float (&o)[kOutSums]) {
  using Format = ElementOf<forward_features.output>::Format;
  const u32 quad = opaque_thread() % 4;
#pragma unroll
  for (i32 j = 0; j < kOutSums; ++j) {
    const i32 row = rows.row[row_of_element(j)], d = sm80::own_column(j, quad);
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

DEV void store_results(u32 sm, const JvpParams& p, const WorkTile& x, const Scores (&scores)[kRowTiles],
                       float (&o)[kRowTiles][kOutSums], float (&t)[kRowTiles][kOutSums],
                       const JvpRows (&rows)[kRowTiles]) {
  u32 wrong[kRowTiles];
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const JvpFinal end = finalize_both(p, x, rows[r]);
    wrong[r] = normalize_both(o[r], t[r], end);
    const FragmentRows& own = scores[r].rows;
    if (opaque_thread() % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) write_lse(p, x, own.row[i], end.lse[i]), write_tlse(p, x, own.row[i], end.mu[i]);
    }
    if constexpr (!config.staged) {
      store_elements(p.out, p.out_stride, x, own, o[r]);
      store_elements(p.tout, p.tout_stride, x, own, t[r]);
    }
  }
  if constexpr (config.staged) {
    store_staged(sm + kLayout.q, p.out, p.out_stride, x, o);
    store_staged(sm + kLayout.q + kLayout.q_bytes, p.tout, p.tout_stride, x, t);
  }
  // Earlier stores of these rows stand before the later ones.
  if constexpr (kShare > 1)
    __syncthreads();
  else
    __syncwarp();
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    if (__any_sync(0xffffffffu, wrong[r] != 0)) compute_again(p, x, scores[r], scores[r].first_row(), wrong[r]);
  }
}

}  // namespace onepass::cuda::jvp
