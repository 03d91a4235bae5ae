// From products to weights, and from weights and dP to dS, on the fragment of 64 keys x block_q rows: as everybody does
// it (attention/backward_fragment.cuh), and in fewer instructions where there is nothing between product and weight.
#pragma once
#include "cuda/attention/backward/fragment.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/mma/fragment.cuh"
#include "cuda/sm90/backward/tile.cuh"

namespace onepass::sm90 {

static_assert(kBlockK == 16);         // parts of slopes and rows to compute again are counted by warps
constexpr int kScores = kBlockM / 2;  // of a lane
constexpr bool kPlainScores = plain_scores(backward_features, config);
using ScoreFragment = Fragment<float, kScores>;   // S^T or dP^T: two of the warp's keys, rows of the block
using Statistics = Fragment<float, kScores / 2>;  // LSE or D of this lane's rows
using ScoreWords = Fragment<u32, kScores / 2>;    // scores as an operand of 16 bits

struct BlockScores : KeyScores {
  const BackwardParams& p;
  i64 slope_place = 0;  // of dslopes' part of this warp, for head 0
  float slope_sum = 0.0f;

  explicit DEV BlockScores(const BackwardParams& params) : KeyScores{{params}}, p(params) {}

  // Opens the 16 keys of a tile from `key` on, for one head; several warps may share them (`part`).
  DEV void open(const KeyTile& x, i32 key, i32 part) {
    band =
        features.packed ? band_of(p, x.seq_q, x.seq_k) : band_of(p, p.seq_q, p.seq_k);  // parameters cost no register
    batch = x.batch;
    first_key = key;
    keys = FragmentRows::from(key);
    if constexpr (backward_features.dslopes) {
      slope_place = slope_part(p, x, 0, key, part) - p.slope_parts;
#pragma unroll 1
      for (i32 i = 0; i < p.heads_per_kv; ++i)
        if (threadIdx.x % 32 == 0 && x.exists() && key < x.seq_k) *slope_of(x.head * p.heads_per_kv + i) = 0.0f;
    }
  }
  DEV void open_head(i32 of) {
    head = of;
    if constexpr (features.alibi) slope = p.slopes[batch * p.slope_stride[0] + head * p.slope_stride[1]];
    slope_sum = 0.0f;
  }
  DEV void close_head() {
    if constexpr (backward_features.dslopes) {
      slope_sum = warp_sum(slope_sum);
      if (threadIdx.x % 32 == 0 && first_key < band.seq_k)
        atomicAdd(slope_of(static_cast<i32>(head)), slope_sum);  // one thread's, in the order of its blocks
    }
  }

  // The mask's bits of a block's scores of this lane; read ahead of their use.
  DEV u32 seen_scores(i32 first_row) const {
    if constexpr (!kPlainScores || !features.bool_mask) return ~0u;
    const MaskFragments& mask = p.mask_fragments;
    return mask.words[batch * mask.stride[0] + head * mask.stride[1] + first_row / 64 * mask.stride[2] + first_key * 2 +
                      opaque_thread() % 32];
  }
  // Products, or scores with their bias, become weights: probability() but for its limit of 1, which costs 3 % and
  // which the rounding of huge LSEs alone would pass; what overflows is computed again, but not where dbias is wanted:
  // that leaves at once. So hidden scores are marked for it, too. careful: with the limit, and hidden scores are
  // marked. next() is called when the rows' LSEs of scores 8 c to 8 c + 7 have been used.
  template <class Next>
  DEV bool plain_weights(ScoreFragment& s, const Statistics& reference, i32 first_row, u32 seen,
                         const Next& next) const {
    hide_products(s, first_row);
    if constexpr (features.bool_mask) {
      if (warp_any(seen != ~0u)) each(s, [&](int j, float& x) { x = seen >> j & 1 ? x : kNegInf; });
    }
    if constexpr (config.careful) {
      careful_weights(s, reference, next);
      return true;
    } else {
      return fast_weights(s, reference, next);
    }
  }
  DEV void plain_gradients(const ScoreFragment& w, ScoreFragment& dp, const DropoutMask<kScores>& dropout_mask,
                           const Statistics& d, const EntropyGradients& entropies, bool some_hidden) const {
    float dentropy[4] = {};
    each(dp, [&](int j, float& x) {
      if (j % 8 == 0) entropies.load(dentropy, j / 8);
      const auto slope = [&](float less_d) { return less_entropy(less_d, dentropy[statistic_of(j) % 4], w[j]); };
      if constexpr (features.dropout)
        x = w[j] * slope(fmaf(dropout_mask.has(j) ? x : dropped<config.careful>(x), p.dropout.keep_scale,
                              -d[statistic_of(j)]));
      else
        x = w[j] * slope(x - d[statistic_of(j)]);
    });
    if constexpr (config.careful || backward_features.dbias) {
      if (!some_hidden) return;
      each(dp, [&](int j, float& x) { x = is_hidden(w[j]) ? 0.0f : x; });  // whatever dO and V hold
    }
  }

  // Receives the gradient of each score from differentiate().
  DEV void add(i32 row, i32 key, float gradient) {
    if constexpr (backward_features.dbias) {
      if (row < band.seq_q && key < band.seq_k) atomicAdd(p.dbias + spread(p.dbias_stride, row, key), gradient);
    }
    if constexpr (backward_features.dslopes) slope_sum -= gradient * distance(row, key);
  }

 private:
  template <class Next>
  DEV bool fast_weights(ScoreFragment& s, const Statistics& reference, const Next& next) const {
    if constexpr (backward_features.dbias) {
      float least = 0.0f;
      each(s, [&](int, float x) { least = fminf(least, x); });
      if (warp_any(least == kNegInf)) {
        each(s, [&](int j, float& x) { x = x == kNegInf ? kHidden : probability(p, x, reference[statistic_of(j)]); });
        return true;
      }
    }
#pragma unroll
    for (int c = 0; c < kScores / 8; ++c) {
#pragma unroll
      for (int j = 8 * c; j < 8 * c + 8; ++j) {
        const float r = reference[statistic_of(j)];
        if constexpr (backward_features.dbias)
          s[j] = probability(p, s[j], r);
        else if constexpr (kFusedWeights)
          s[j] = weight_of(fmaf(s[j], p.scale_log2, -r));
        else
          s[j] = weight_of((s[j] - r) * static_cast<float>(kLog2e));
      }
      next(c);
    }
    return false;
  }
  template <class Next>
  DEV void careful_weights(ScoreFragment& s, const Statistics& reference, const Next& next) const {
#pragma unroll
    for (int c = 0; c < kScores / 8; ++c) {
#pragma unroll
      for (int j = 8 * c; j < 8 * c + 8; ++j) {
        const float r = reference[statistic_of(j)];
        s[j] = s[j] == kNegInf || r == -kNegInf ? kHidden : probability(p, s[j], r);
      }
      next(c);
    }
  }
  DEV float* slope_of(i32 query_head) const {
    return p.slope_parts + (slope_place + query_head * (static_cast<i64>(p.k_blocks) * backward_shape.key_warps));
  }
  // Products that the band hides.
  DEV void hide_products(ScoreFragment& s, i32 first) const {
    constexpr i32 kRows = kBlockM;
    if (first_key >= band.keys_of(first + kRows - 1).lo && first_key + 16 <= band.keys_of(first).hi) return;
    const u32 lane = opaque_thread() % 32, quad = lane % 4;
    const i32 key = first_key + static_cast<i32>(lane / 4);
    i32 from[2], upto[2];  // the rows that see a key
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 at = key + 8 * i - band.shift;
      from[i] = key + 8 * i >= band.seq_k ? 0x7fffffff : features.bounded_right ? at - band.right : -0x7fffffff;
      upto[i] = at + band.left;
    }
    each(s, [&](int j, float& x) {
      const int i = row_of_element(j);
      const i32 row = first + column_of(j, quad);
      if (row < from[i] || (features.bounded_left && row > upto[i])) x = kNegInf;
    });
  }
};

}  // namespace onepass::sm90
