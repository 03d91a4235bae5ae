// The scores of a transposed fragment, S^T = K Q^T: a lane holds two keys, eight apart, and for each eight queries of a
// block two neighbouring ones. Products become weights, weights and dP become dS, each with all that lies between
// (score.cuh): the backward pass of fragment.cuh and scores.cuh.
#pragma once
#include "cuda/attention/backward/score.cuh"

namespace onepass {

// A lane's part of N / 4 rows' statistics, from shared memory: element j of a fragment belongs to statistic_of(j).
constexpr DEV int statistic_of(int j) { return j / 4 * 2 + j % 2; }
template <int N>
DEV void load_statistics(float (&x)[N], u32 from) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    u32 w[4];
    load_four(from + 16 * i + 16 * (threadIdx.x % 4), w[0], w[1], w[2], w[3]);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[i + e] = __uint_as_float(w[e]);
  }
}

// ln2 dH of the rows, in shared memory as their other statistics: those of scores 8 c to 8 c + 7 at once.
struct EntropyGradients {
  u32 from;
  DEV void load(float (&x)[4], int c) const {
    if constexpr (backward_features.dentropy) load_statistics(x, from + 64 * static_cast<u32>(c));
  }
};

// The derivatives of N scores, as far as they are not 1.
template <int N>
struct Slopes {
  float bias[features.score_mod ? N : 1], product[features.softcap ? N : 1];
  DEV void set(int j, const DerivedScore& s) {
    if constexpr (features.score_mod) bias[j] = s.by_bias;
    if constexpr (features.softcap) product[j] = s.by_product;
  }
  DEV float by_bias(int j) const { return features.score_mod ? bias[j] : 1.0f; }
  DEV float by_product(int j) const { return features.softcap ? product[j] : by_bias(j); }
};

// Which of N weights dropout leaves: a bit each.
template <int N>
struct DropoutMask {
  u32 word[features.dropout ? ceil_div(N, 32) : 1];
  static DEV DropoutMask all() {
    DropoutMask x;
    for (u32& w : x.word) w = ~0u;
    return x;
  }
  DEV bool has(int j) const { return !features.dropout || word[j / 32] >> j % 32 & 1; }
};

// Dropout takes a number and leaves this of it. careful: its sign, and NaN if it is not finite.
template <bool careful>
DEV float dropped(float x) {
  return careful ? x * 0.0f : 0.0f;
}

// A hidden weight is -0: products add nothing, and it can be told from a visible one that has become 0.
constexpr float kHidden = -0.0f;
// A bias or a score_mod may make a score -inf: that hides the key, too.
constexpr bool kHidesByScore = features.bias != ScalarType::none || features.score_mod;
DEV bool is_hidden(float weight) { return __float_as_uint(weight) == __float_as_uint(kHidden); }

// The scores of one query head and the sixteen keys from `first` on.
struct KeyScores : HeadScores {
  i32 first_key = 0;
  FragmentRows keys{};

  DEV void open(const WorkTile& x, i32 first) {
    HeadScores::open(x);
    first_key = first;
    keys = FragmentRows::from(first);
  }

  // Products become weights, before dropout. reference: of the lane's rows (load_statistics). careful: a score of -inf
  // hides its key, and an LSE of -inf all of the row's. Tells whether some are hidden.
  template <bool careful = false, int N>
  DEV bool probabilities(float (&s)[N], Slopes<N>& slopes, const float (&reference)[N / 2], i32 first_row) const {
    // A tanh of two rows at once: a NaN of the one would be in the other's dbias, which is not computed again.
    constexpr bool kPairs = features.pair_tanh && !careful && !backward_features.dbias;
    const u32 quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if constexpr (kPairs) cap_pair(s[j], s[j + 1]);
#pragma unroll
      for (int i = j; i < j + 2; ++i) {
        const i32 row = first_row + column_of(i, quad), key = keys.row[i >> 1 & 1];
        const float bias = bias_at(row, key);
        const DerivedScore d = kPairs ? derived_after_cap(s[i], bias, row, key) : derived(s[i], bias, row, key);
        slopes.set(i, d);
        s[i] = probability(p, d.value, reference[statistic_of(i)]);
        if constexpr (kHidesByScore || careful) s[i] = d.value == kNegInf ? kHidden : s[i];
        if constexpr (careful) s[i] = reference[statistic_of(i)] == -kNegInf ? kHidden : s[i];
      }
    }
    return hide(s, first_row) || kHidesByScore || careful;
  }

  // dP becomes dS, the gradient by the scaled product. add(row, key, g) is told the gradient by the bias, 0 where the
  // key is hidden.
  template <bool careful = false, int N, class Add>
  DEV void differentiate(const float (&w)[N], float (&dp)[N], const Slopes<N>& slopes,
                         const DropoutMask<N>& dropout_mask, const float (&d)[N / 2], const EntropyGradients& entropies,
                         bool some_hidden, i32 first_row, const Add& add) const {
    const u32 quad = threadIdx.x % 4;
    float dentropy[4] = {};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j % 8 == 0) entropies.load(dentropy, j / 8);
      const float from_v =
          features.dropout ? (dropout_mask.has(j) ? dp[j] * p.dropout.keep_scale : dropped<careful>(dp[j])) : dp[j];
      float g = w[j] * less_entropy(from_v - d[statistic_of(j)], dentropy[statistic_of(j) % 4], w[j]);
      if (some_hidden) g = is_hidden(w[j]) ? 0.0f : g;  // whatever dO and V hold
      const bool hides = careful && is_hidden(w[j]);    // slopes of hidden scores may be NaN
      const float by_bias = hides ? 0.0f : g * slopes.by_bias(j);
      add(first_row + column_of(j, quad), keys.row[j >> 1 & 1], by_bias);
      dp[j] = !features.softcap ? by_bias : hides ? 0.0f : g * slopes.by_product(j);
    }
  }

  // The dropout of weights: what is dropped becomes 0, what is kept stays, and the sums are scaled at their end.
  // Philox serves four neighbouring keys of a row, which lie in four lanes: each draws one block of the four that they
  // need together (two rows, keys eight apart), and they exchange the bits of all their blocks at once.
  template <int N>
  DEV DropoutMask<N> dropout_mask(i32 first_row) const {
    DropoutMask<N> all{};
    if constexpr (features.dropout) {
      const u32 lane = threadIdx.x % 32, own = lane / 4 % 4, last = p.dropout.last_dropped();
      const u32 column_block = static_cast<u32>(first_key) / 4 + lane / 16 + own / 2 * 2;
#pragma unroll
      for (int j = 0; j < N; j += 4) {
        const u32 row = static_cast<u32>(first_row + column_of(j, lane % 4)) + own % 2;
        const PhiloxBlock block = draws_of(p.dropout, batch, head, row, column_block);
#pragma unroll
        for (int i = 0; i < 4; ++i) all.word[j / 32] |= block.word[i] > last ? 1u << (j + i) % 32 : 0;
      }
#pragma unroll
      for (u32& word : all.word) word = transposed(transposed(word, own, 1, 0x55555555), own, 2, 0x33333333);
    }
    return all;
  }

 private:
  // One step of exchanging, of every four bits, bit i of lane `own` of four with bit `own` of lane i: with the lane
  // `step` away, the bits that are `step` apart.
  static DEV u32 transposed(u32 word, u32 own, int step, u32 low) {
    const u32 got = __shfl_xor_sync(0xffffffffu, word, 4 * step);
    return own & step ? (word & ~low) | (got >> step & low) : (word & low) | (got & low) << step;
  }

  // The mask tile (64 rows x 32 keys, as host.cpp packs it) that contains these keys.
  DEV MaskTile mask_tile(i32 row) const {
    return static_cast<MaskTile>(p.mask.tiles[batch * p.mask.tile_stride[0] + head * p.mask.tile_stride[1] +
                                              row / 64 * p.mask.tile_stride[2] + first_key / 32]);
  }

  template <int N>
  DEV bool hide(float (&w)[N], i32 first_row) const {
    bool some = false;  // of them hidden
    const u32 quad = threadIdx.x % 4;
    constexpr i32 kRows = 2 * N;
    if constexpr (features.masks()) {
      some = features.mask_mod;
      if constexpr (features.bool_mask) {
        // A word of a row holds its bits of all sixteen keys: each lane loads those of a row or two, and shows them.
        constexpr i32 kWords = ceil_div(kRows, 32);
        u32 word[kWords];
#pragma unroll
        for (i32 i = 0; i < kWords; ++i)
          word[i] = mask_row(first_row + 32 * i + static_cast<i32>(threadIdx.x % 32))[first_key / 32];
        bool hides = false;
        for (i32 row = first_row; row < min(first_row + kRows, band.seq_q); row += 64)
          hides = hides || mask_tile(row) != kNoneMasked;
        if (hides) {
          const i32 key = keys.row[0] % 32;  // the other one is eight bits on
#pragma unroll
          for (int j = 0; j < N; ++j) {
            if (j & 2) continue;
            const u32 bits = __shfl_sync(0xffffffffu, word[column_of(j, 0) / 32], column_of(j, quad) % 32) >> key;
            w[j] = bits & 1 ? w[j] : kHidden;
            w[j + 2] = bits >> 8 & 1 ? w[j + 2] : kHidden;
          }
        }
        some = some || hides;
      }
      if constexpr (features.mask_mod) {
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (masked_by_mod(first_row + column_of(j, quad), keys.row[j >> 1 & 1])) w[j] = kHidden;
      }
    }
    // Every row of the block sees all keys of `full`.
    const Band32::Range full = {band.keys_of(first_row + kRows - 1).lo, band.keys_of(first_row).hi};
    if (first_key >= full.lo && first_key + 16 <= full.hi && first_row + kRows <= band.seq_q) return some;
    Band32::Range rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i] = rows_that_see(band, keys.row[i], keys.row[i] + 1);
      if (keys.row[i] >= band.seq_k) rows[i] = {0, 0};
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const i32 row = first_row + column_of(j, quad);
      if (row < rows[j >> 1 & 1].lo || row >= rows[j >> 1 & 1].hi) w[j] = kHidden;
    }
    return true;
  }
};

}  // namespace onepass
