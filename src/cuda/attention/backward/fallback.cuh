// The pairs of the non-finite fallback: rows of a gradient that are not finite are computed again, sixteen at a time
// (repair_rows.cuh), or one by one where dO has another type than q.
//
// Products multiply a hidden key's 0 with whatever q, k or dO hold, so a NaN or an infinity reaches gradients that no
// visible pair leads it to. Here only visible pairs are added up, by one warp, in fp32: slow, and never entered for
// finite gradients.
#pragma once
#include "algebra/nonfinite.hpp"
#include "cuda/attention/backward/score.cuh"

namespace onepass {

DEV i64 token_offset(const long long (&stride)[3], i32 batch, i32 head, i32 token) {
  return batch * stride[0] + head * stride[1] + static_cast<i64>(token) * stride[2];
}
DEV float input_at(const void* base, i64 at) { return element_at<features.input>(base, at); }
DEV float dot_of(const void* a, i64 a_at, const void* b, i64 b_at, i32 dim) {
  float sum = 0.0f;
#pragma unroll 1
  for (i32 d = 0; d < dim; ++d) sum = fmaf(input_at(a, a_at + d), input_at(b, b_at + d), sum);
  return sum;
}

// The factors of one row and key: of dO in dV, and of k and q in dQ and dK.
struct PairWeights {
  bool seen = false;
  float dropped = 0.0f, slope = 0.0f;
};
DEV bool is_visible(const WorkTile& x, const HeadScores& scores, i32 row, i32 key) {
  if (row >= x.seq_q || key >= x.seq_k || !scores.band.visible(row, key)) return false;
  if constexpr (features.masks()) return !scores.masked(row, key);
  return true;
}
// product: q k; dp: dO v; row_of: of the row.
DEV PairWeights weights_of_pair(const BackwardParams& p, const WorkTile& x, const HeadScores& scores, i32 row, i32 key,
                                float product, float dp, const RowStatistics& row_of) {
  PairWeights pair;
  const DerivedScore s = scores.derived(product, scores.bias_at(row, key), row, key);
  float kept = 1.0f;
  if constexpr (features.dropout) kept = dropout_factor(p.dropout, x.batch, x.head, row, key);
  const float weight = probability(p, s.value, row_of.reference);
  pair.seen = s.value != kNegInf && row_of.reference != -kNegInf;
  pair.dropped = weight * kept;
  const float slope = less_entropy((kept == 0.0f ? 0.0f : dp * kept) - row_of.d, row_of.dentropy, weight);
  pair.slope = visible_weight(weight, slope) * slope * s.by_product * p.scale;
  return pair;
}
DEV PairWeights pair_weights(const BackwardParams& p, const WorkTile& x, const HeadScores& scores, i32 row, i32 key) {
  if (!is_visible(x, scores, row, key)) return {};
  const i32 kv_head = x.head / p.heads_per_kv;
  const i64 q = token_offset(p.q_stride, x.map_batch, x.head, x.q_begin + row),
            k = token_offset(p.k_stride, x.map_batch, kv_head, x.k_begin + key),
            v = token_offset(p.v_stride, x.map_batch, kv_head, x.k_begin + key),
            g = token_offset(p.dout_stride, x.map_batch, x.head, x.q_begin + row);
  float dp = 0.0f;
#pragma unroll 1
  for (i32 d = 0; d < features.dim_v; ++d)
    dp = fmaf(element_at<forward_features.output>(p.dout, g + d), input_at(p.v, v + d), dp);
  return weights_of_pair(p, x, scores, row, key, dot_of(p.q, q, p.k, k, features.dim_qk), dp, statistics_at(p, x, row));
}

// True if the row sees a key, by one warp. It may miss some whose bias is -inf.
DEV bool sees_key(const BackwardParams& p, const WorkTile& x, i32 row) {
  HeadScores scores{p};
  scores.open(x);
  const Band32::Range keys = scores.band.keys_of(row);
  if constexpr (!features.masks() && features.bias == ScalarType::none && !features.score_mod) return keys.lo < keys.hi;
  bool seen = false;
#pragma unroll 1
  for (i32 first = keys.lo; first < keys.hi && !seen; first += 32) {
    const i32 key = first + static_cast<i32>(threadIdx.x % 32);
    if constexpr (features.score_mod)
      seen = pair_weights(p, x, scores, row, key).seen;
    else
      seen = is_visible(x, scores, row, key) && scores.bias_at(row, key) != kNegInf;
    seen = __any_sync(0xffffffffu, seen);
  }
  return seen;
}

// to[d] = sum of `pairs` pairs' weight times from[d], `dim` elements, by one warp. pair(i): weight of the i-th, and
// whether it is seen; source(i): where its elements lie.
template <ScalarType from_type, i32 dim, class Pair, class Source>
DEV void add_pairs(float (&sum)[round_up(dim, 32) / 32], i32 first, i32 last, const void* from, const Pair& pair,
                   const Source& source) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll 1
  for (i32 base = first; base < last; base += 32) {
    float weight = 0.0f;
    const bool seen = base + lane < last && pair(base + lane, weight);
#pragma unroll 1
    for (i32 i = 0; i < 32 && base + i < last; ++i) {
      const float w = __shfl_sync(0xffffffffu, weight, i);
      if (!__shfl_sync(0xffffffffu, static_cast<u32>(seen), i)) continue;
      const i64 at = source(base + i);
#pragma unroll
      for (i32 e = 0; e < round_up(dim, 32) / 32; ++e) {
        const i32 d = lane + 32 * e;
        if (d >= dim) continue;
        const float x = element_at<from_type>(from, at + d);
        sum[e] += visible_weight(w, x) * x;
      }
    }
  }
}

DEV void write_gradient(void* to, i64 at, float x) {
  using Format = ElementOf<backward_features.gradients>::Format;
  static_cast<typename Format::Raw*>(to)[at] = Format::round(x);
}
template <i32 dim>
DEV void write_sums(void* to, i64 at, const float (&sum)[round_up(dim, 32) / 32]) {
#pragma unroll
  for (i32 e = 0; e < round_up(dim, 32) / 32; ++e) {
    const i32 d = static_cast<i32>(threadIdx.x % 32) + 32 * e;
    if (d < dim) write_gradient(to, at + d, sum[e]);
  }
}

// The row of dQ, by one warp.
DEV void fallback_query(const BackwardParams& p, const WorkTile& x, i32 row) {
  HeadScores scores{p};
  scores.open(x);
  const Band32::Range keys = scores.band.keys_of(row);
  const i32 kv_head = x.head / p.heads_per_kv;
  float sum[round_up(features.dim_qk, 32) / 32] = {};
  const auto pair = [&](i32 key, float& weight) {
    const PairWeights w = pair_weights(p, x, scores, row, key);
    weight = w.slope;
    return w.seen;
  };
  const auto source = [&](i32 key) { return token_offset(p.k_stride, x.map_batch, kv_head, x.k_begin + key); };
  add_pairs<features.input, features.dim_qk>(sum, keys.lo, keys.hi, p.k, pair, source);
  write_sums<features.dim_qk>(p.dq, token_offset(p.dq_stride, x.map_batch, x.head, x.q_begin + row), sum);
}

// The rows of dK and dV of one key, by one warp.
DEV void fallback_key(const BackwardParams& p, const KeyTile& x, i32 key) {
  float dk[round_up(features.dim_qk, 32) / 32] = {}, dv[round_up(features.dim_v, 32) / 32] = {};
#pragma unroll 1
  for (i32 head = x.head * p.heads_per_kv; head < (x.head + 1) * p.heads_per_kv; ++head) {
    const WorkTile y = rows_of(x, head, 0);
    HeadScores scores{p};
    scores.open(y);
    const Band32::Range rows = rows_that_see(scores.band, key, key + 1);
    const auto by = [&](float PairWeights::* which) {
      return [&, which](i32 row, float& weight) {
        const PairWeights w = pair_weights(p, y, scores, row, key);
        weight = w.*which;
        return w.seen;
      };
    };
    const auto at = [&](const long long(&stride)[3]) {
      return [&](i32 row) { return token_offset(stride, y.map_batch, head, y.q_begin + row); };
    };
    if constexpr (backward_features.dk)
      add_pairs<features.input, features.dim_qk>(dk, rows.lo, rows.hi, p.q, by(&PairWeights::slope), at(p.q_stride));
    if constexpr (backward_features.dv)
      add_pairs<forward_features.output, features.dim_v>(dv, rows.lo, rows.hi, p.dout, by(&PairWeights::dropped),
                                                         at(p.dout_stride));
  }
  const i32 token = x.k_begin + key;
  if constexpr (backward_features.dk)
    write_sums<features.dim_qk>(p.dk, token_offset(p.dk_stride, x.map_batch, x.head, token), dk);
  if constexpr (backward_features.dv)
    write_sums<features.dim_v>(p.dv, token_offset(p.dv_stride, x.map_batch, x.head, token), dv);
}

}  // namespace onepass
