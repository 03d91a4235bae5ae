// One row by one warp, pair by pair: for every kind of score and of keys. Slow.
#pragma once
#include "algebra/entropy.hpp"
#include "algebra/nonfinite.hpp"
#include "cuda/attention/descale.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/key_value_view.cuh"

namespace onepass {

// merge_lanes with the entropies of the lanes' keys. Returns that of all of them.
DEV float merge_lanes_and_entropies(RowState<float>& state, float entropy, float scale) {
#pragma unroll 1
  for (i32 step = 16; step > 0; step /= 2) {
    const RowState<float> other = {__shfl_xor_sync(0xffffffffu, state.m, step),
                                   __shfl_xor_sync(0xffffffffu, state.l, step)};
    const Merged<float> joined = merge(state, other, scale);
    entropy = joined_entropy(entropy, state.l, __shfl_xor_sync(0xffffffffu, entropy, step), other.l, joined);
    state = joined.state;
  }
  return entropy;
}

// Two passes in fp32 over the keys that the row sees, and no others.
// Scores: HeadScores, or a type that knows their masks otherwise. Returns the row's largest score in natural units,
// -inf if it sees no key.
template <class Scores>
DEV float fallback_row(const ForwardParams& p, const WorkTile& x, const Scores& scores, i32 row) {
  const i32 lane = threadIdx.x % 32;
  const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).keys_of(row);
  const i64 q = x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + (x.q_begin + row) * p.q_stride[2];
  const KeyValueView keys_and_values = KeyValueView::of(p, x);
  const auto of_q = [](const void* base, i64 at) { return element_at<features.input>(base, at); };
  const auto element = [](const void* base, i64 at) { return element_at<features.keys>(base, at); };
  TreeRow<i32> tree;
  if constexpr (features.tree) tree = scores.tree_row(row);
  const auto score = [&](i32 key) {
    if (key >= keys.hi) return kNegInf;
    if constexpr (features.tree) {
      if (!tree.sees(key)) return kNegInf;
    }
    if constexpr (features.masks()) {
      if (scores.masked(row, key)) return kNegInf;
    }
    float dot = 0.0f;
    const KeyValueView::Place at = keys_and_values.place(p, key);
    const i64 k = keys_and_values.offset(p.k_stride, at);
    const i32 depth = at.exists() ? features.dim_qk : 0;
    for (i32 from = 0; from < depth; from += 16) {  // sums of sums: 200 equal products would lose 6 bits
      float part = 0.0f;
      for (i32 d = from; d < min(from + 16, depth); ++d) part += of_q(p.q, q + d) * element(p.k, k + d);
      dot += part;
    }
    if constexpr (features.keys == ScalarType::e4m3)
      dot *= q_factor(p, x.batch, x.head, row) * k_factor(p, x.batch, keys_and_values.head, key / kDescaleRows);
    return scores.score(dot, scores.bias_at(row, key), row, key);
  };
  const float scale = scores.unit().factor;
  RowState<float> state;
  [[maybe_unused]] float terms = 0.0f, entropy = 0.0f;
  for (i32 first = keys.lo; first < keys.hi; first += 32) {
    const float s = score(first + lane);
    [[maybe_unused]] const float before = state.m;
    const Step<float> step = advance(state, s, scale);
    const float w = weight(s, scale, step);
    if constexpr (forward_features.entropy)
      terms = moved_terms(terms, state.l, before, scale, step) + w * exponent(s, scale, step);
    absorb(state, w);
  }
  if constexpr (forward_features.entropy)
    entropy = merge_lanes_and_entropies(state, onepass::entropy(state.l, terms), scale);
  else
    merge_lanes(state, scale);
  const Step<float> reference = refer_to(state.m, scale);
  state = to_natural(state, scale, scores.unit().unit);
  const float largest = state.m;
  if constexpr (forward_features.row_max) {
    if (lane == 0) write_row_max(p, x, row, largest_score(state));
  }
  if constexpr (forward_features.entropy) {
    entropy = entropy_with_sink(p, x.head, state, entropy);
    if (lane == 0) write_entropy(p, x, row, entropy);
  }
  float share = 1.0f;  // of the keys, beside the sink
  if constexpr (forward_features.sinks) share = join_sink(p, x.head, state);
  const Final<float> end = finalize_natural(state);
  constexpr i32 kOwn = round_up(features.dim_v, 32) / 32;  // dims lane, lane + 32, ...
  float o[kOwn] = {};
  for (i32 first = keys.lo; first < keys.hi; first += 32) {
    const float s = score(first + lane);
    const float w = weight(s, scale, reference);
    float kept = 1.0f;
    if constexpr (features.dropout) kept = dropout_factor(p.dropout, x.batch, x.head, row, first + lane);
    for (i32 j = 0; j < 32 && first + j < keys.hi; ++j) {
      const float wj = __shfl_sync(0xffffffffu, w, j), kj = __shfl_sync(0xffffffffu, kept, j);
      if (__shfl_sync(0xffffffffu, s == kNegInf, j)) continue;
      const KeyValueView::Place at = keys_and_values.place(p, first + j);
      const i64 v = keys_and_values.offset(p.v_stride, at);
#pragma unroll
      for (i32 i = 0; i < kOwn; ++i) {
        const i32 d = lane + 32 * i;
        if (d >= features.dim_v || !at.exists()) continue;
        float value = element(p.v, v + d);
        if constexpr (features.keys == ScalarType::e4m3)
          value *= v_factor(p, x.batch, keys_and_values.head, (first + j) / kDescaleRows);
        if constexpr (forward_features.v_mean)
          value += p.v_mean[x.batch * p.v_mean_stride[0] + keys_and_values.head * p.v_mean_stride[1] +
                            d * p.v_mean_stride[2]];
        o[i] += visible_weight(wj, value) * kj * value;  // however faint the weight: an infinite V shows
      }
    }
  }
#pragma unroll
  for (i32 i = 0; i < kOwn; ++i) {
    const i32 d = lane + 32 * i;
    if (d < features.dim_v) write_out(p, out_offset(p, x, row) + d, o[i] * visible_weight(share, o[i]) * end.inv_l);
  }
  if (lane == 0) write_lse(p, x, row, end.lse);
  return largest;
}

}  // namespace onepass
