// One row by one warp, pair by pair, in fp32: for any head dims, and for rows whose results are not finite. Only keys
// that the row sees are read, so that what a hidden one holds reaches nothing.
#pragma once
#include "algebra/nonfinite.hpp"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/key_value_view.cuh"
#include "cuda/jvp/scores.cuh"

namespace onepass::cuda::jvp {

DEV i64 row_place(const long long (&stride)[3], const WorkTile& x, i32 row) {
  return x.map_batch * stride[0] + x.head * stride[1] + static_cast<i64>(x.q_begin + row) * stride[2];
}
DEV void write_tlse(const JvpParams& p, const WorkTile& x, i32 row, float tlse) {
  if (p.tlse && row < x.seq_q) p.tlse[row_place(p.tlse_stride, x, row)] = tlse;
}
DEV void write_tout(const JvpParams& p, i64 at, float value) {
  using Format = ElementOf<forward_features.output>::Format;
  static_cast<Format::Raw*>(p.tout)[at] = Format::round(value);
}

// The sink's tangent times its share of the softmax, whose LSE is `lse`.
DEV float sink_tangent(const JvpParams& p, i32 head, float lse) {
  if constexpr (!jvp_features.tsinks) return 0.0f;
  const float sink = p.sinks[head * p.sink_stride];
  return sink == kNegInf ? 0.0f : natural_weight(sink - lse) * p.tsinks[head * p.tsink_stride];
}

// Rows that see no key, `count` from `first` on, by one whole warp: O and derivatives of 0, and the sink's.
DEV void write_empty_rows(const JvpParams& p, const WorkTile& x, i32 first, i32 count) {
  write_empty(p, x, first, count);
  const i32 lane = static_cast<i32>(opaque_thread() % 32);
  const float tlse = jvp_features.tsinks ? p.tsinks[x.head * p.tsink_stride] : 0.0f;
  for (i32 row = first; row < min(first + count, x.seq_q); ++row) {
    for (i32 d = lane; d < features.dim_v; d += 32) write_tout(p, row_place(p.tout_stride, x, row) + d, 0.0f);
    if (lane == 0) write_tlse(p, x, row, tlse);
  }
}

struct RowPlaces {
  i64 q, tq;
  DEV static RowPlaces of(const JvpParams& p, const WorkTile& x, i32 row) {
    return {row_place(p.q_stride, x, row), row_place(p.tq_stride, x, row)};
  }
};

// Sums of sums: 200 equal products would lose 6 bits.
template <i32 dim>
DEV float dot(const void* a, i64 a_at, const void* b, i64 b_at) {
  float sum = 0.0f;
#pragma unroll 1
  for (i32 from = 0; from < dim; from += 16) {
    float part = 0.0f;
    for (i32 d = from; d < min(from + 16, dim); ++d)
      part = fmaf(element_at<features.input>(a, a_at + d), element_at<features.input>(b, b_at + d), part);
    sum += part;
  }
  return sum;
}

// The pair's score, -inf if it is hidden, and with kMoved the score's derivative.
template <bool kMoved>
DEV Tangent pair_of(const JvpParams& p, const HeadScores& scores, const KeyValueView& view, const RowPlaces& at,
                    i32 row, i32 key, i32 end) {
  if (key >= end) return {kNegInf, 0.0f};
  if constexpr (features.masks()) {
    if (scores.masked(row, key)) return {kNegInf, 0.0f};
  }
  const KeyValueView::Place place = view.place(p, key);
  const i64 k = view.offset(p.k_stride, place);
  float moved = 0.0f;
  if constexpr (kMoved)
    moved = dot<features.dim_qk>(p.tq, at.tq, p.k, k) +
            dot<features.dim_qk>(p.q, at.q, p.tk, view.offset(p.tk_stride, place));
  const Tangent t = tangent_of(p, scores, dot<features.dim_qk>(p.q, at.q, p.k, k), moved, row, key);
  return {t.score, t.score == kNegInf ? 0.0f : t.derivative};
}

DEV void compute_row(const JvpParams& p, const WorkTile& x, const HeadScores& scores, i32 row) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32);
  const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).keys_of(row);
  const KeyValueView view = KeyValueView::of(p, x);
  const RowPlaces at = RowPlaces::of(p, x, row);
  const float factor = scores.unit().factor;
  RowState<float> state;
#pragma unroll 1
  for (i32 first = keys.lo; first < keys.hi; first += 32) {
    const float s = pair_of<false>(p, scores, view, at, row, first + lane, keys.hi).score;
    absorb(state, weight(s, factor, advance(state, s, factor)));
  }
  merge_lanes(state, factor);
  const Step<float> reference = refer_to(state.m, factor);
  state = to_natural(state, factor, scores.unit().unit);
  float share = 1.0f;  // of the keys, beside the sink
  if constexpr (forward_features.sinks) share = join_sink(p, x.head, state);
  const Final<float> end = finalize_natural(state);

  constexpr i32 kOwn = round_up(features.dim_v, 32) / 32;  // dims lane, lane + 32, ...
  float o[kOwn] = {}, t[kOwn] = {}, mu = 0.0f;
  const auto value_at = [](const void* base, i64 place) { return element_at<features.input>(base, place); };
#pragma unroll 1
  for (i32 first = keys.lo; first < keys.hi; first += 32) {
    const Tangent s = pair_of<true>(p, scores, view, at, row, first + lane, keys.hi);
    const float w = weight(s.score, factor, reference);
    if (s.score != kNegInf) mu += visible_weight(w, s.derivative) * s.derivative;
    float kept = 1.0f;
    if constexpr (features.dropout) kept = dropout_factor(p.dropout, x.batch, x.head, row, first + lane);
#pragma unroll 1
    for (i32 j = 0; j < 32 && first + j < keys.hi; ++j) {
      const float wj = __shfl_sync(0xffffffffu, w, j), kj = __shfl_sync(0xffffffffu, kept, j),
                  dj = __shfl_sync(0xffffffffu, s.derivative, j);
      if (__shfl_sync(0xffffffffu, s.score == kNegInf, j)) continue;
      const KeyValueView::Place place = view.place(p, first + j);
      const i64 v = view.offset(p.v_stride, place), tv = view.offset(p.tv_stride, place);
#pragma unroll
      for (i32 i = 0; i < kOwn; ++i) {
        const i32 d = lane + 32 * i;
        if (d >= features.dim_v) continue;
        const float value = value_at(p.v, v + d), moved = value_at(p.tv, tv + d);
        const float seen = visible_weight(wj, value) * kj;  // however faint the weight: an infinite V shows
        o[i] += seen * value;
        t[i] += seen * dj * value + visible_weight(wj, moved) * kj * moved;
      }
    }
  }
  mu = warp_sum(mu) * visible_weight(share, mu) * end.inv_l + sink_tangent(p, x.head, end.lse);
#pragma unroll
  for (i32 i = 0; i < kOwn; ++i) {
    const i32 d = lane + 32 * i;
    if (d >= features.dim_v) continue;
    const float out = o[i] * visible_weight(share, o[i]) * end.inv_l;
    write_out(p, out_offset(p, x, row) + d, out);
    // A mu that is not finite makes the row NaN, which may stand for an infinity.
    write_tout(p, row_place(p.tout_stride, x, row) + d,
               t[i] * visible_weight(share, t[i]) * end.inv_l - (mu + (mu - mu)) * out);
  }
  if (lane == 0) write_lse(p, x, row, end.lse), write_tlse(p, x, row, mu);
}

}  // namespace onepass::cuda::jvp
