// Scores of packed rows: row r of a K/V head is query token r / group, query head r % group of the `group` heads that
// share it, so the rows of a fragment differ in their heads. One score is cuda/attention/scores/score.cuh's.
#pragma once
#include "cuda/attention/scores/scores.cuh"
#include "cuda/decode/work_partition.cuh"

namespace onepass::decode {

struct PackedRow {
  i32 token = 0, head = 0;  // query head

  // Rows past the last one see what it sees and are not written.
  static DEV PackedRow of(const DecodeParams& p, const Group& g, i32 row) {
    const i32 r = g.first_row(p) + max(min(row, g.rows(p) - 1), 0), token = p.by_rows_of_head(r);
    return {token, g.kv_head(p) * p.heads_per_kv + r - token * p.heads_per_kv};
  }
};

// A boolean mask is read where it lies: each of its elements is wanted once.
struct RowScores : HeadScores {
  const DecodeParams& d;
  DEV RowScores(const DecodeParams& params, const Group& g, const PackedRow& row) : HeadScores{params}, d(params) {
    open(g.work_tile(row.head));
  }
  DEV RowScores(const DecodeParams& params, const Group& g, const PackedRow& row, float known_slope)
      : HeadScores{params, band_of(params, g.seq_q, g.seq_k), known_slope, static_cast<u32>(g.batch),
                   static_cast<u32>(row.head)},
        d(params) {}
  DEV bool masked(i32 row, i32 key) const {
    bool seen = true;
    if constexpr (features.bool_mask) seen = d.mask_bytes[spread(d.mask_stride, row, key)] != 0;
    if constexpr (features.mask_mod) seen = seen && !masked_by_mod(row, key);
    return !seen;
  }
};

// As DropPair, of rows that differ in their heads.
struct DropPacked {
  const Dropout& dropout;
  u32 batch, first_key;
  PackedRow own;  // the row that this lane draws for: g if it is even, g + 8 if it is odd
  DEV void operator()(int j, float (&w)[4]) const {
    const u32 quad = opaque_thread() % 4, odd = quad & 1, column = first_key + (j >> 2) * 8 + (quad >> 1) * 4;
    const PhiloxBlock block =
        draws_of(dropout, batch, static_cast<u32>(own.head), static_cast<u32>(own.token), column / 4);
    DropPair::drop(block, dropout.last_dropped(), odd, w);
  }
};

// A lane's rows g and g + 8 of a row tile.
struct LanePlaces {
  PackedRow row[2];
  float slope[2];
  DEV void open(const DecodeParams& p, const Group& g, i32 first) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row[i] = PackedRow::of(p, g, first + 8 * i + static_cast<i32>(threadIdx.x % 32 / 4));
      slope[i] = RowScores(p, g, row[i]).slope;
    }
  }
};
// The drafts that a row sees, in shared memory, for kernels without registers for the walk.
DEV void store_drafts(u32 to, const DecodeParams& p, const Group& g, i32 row) {
  const PackedRow x = PackedRow::of(p, g, row);
  const unsigned long long seen = RowScores(p, g, x, 0.0f).tree_row(x.token).seen;
  store_word(to, static_cast<i32>(seen));
  store_word(to + 4, static_cast<i32>(seen >> 32));
}
DEV unsigned long long load_drafts(u32 from) {
  return static_cast<u32>(load_word(from)) | static_cast<unsigned long long>(static_cast<u32>(load_word(from + 4)))
                                                 << 32;
}

struct LaneScores {
  const DecodeParams& p;
  const Group& group;
  const LanePlaces& at;
  u32 trees = 0;  // kStoredTrees: where the drafts of row g are; those of row g + 8 are 64 bytes further

  DEV RowScores of(int i) const { return {p, group, at.row[i], at.slope[i]}; }

  // Products with the keys from `first` on become scores.
  template <int N>
  DEV void apply(float (&s)[N], i32 first) const {
    const u32 quad = threadIdx.x % 4;
    const RowScores scores[2] = {of(0), of(1)};
    // Computed from the row here, so that it does not occupy registers through the loop.
    const i32 tokens[2] = {opaque(at.row[0].token), opaque(at.row[1].token)};
    if constexpr (kTransforms || features.masks()) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int i = j >> 1 & 1;
        const i32 key = first + column_of(j, quad), token = tokens[i];
        if (features.pair_tanh && j % 2 == 0) scores[i].cap_pair(s[j], s[j + 1]);
        if constexpr (kTransforms) {
          const float bias = scores[i].bias_at(token, key);
          s[j] = features.pair_tanh ? scores[i].after_cap(s[j], bias, token, key)
                                    : scores[i].score(s[j], bias, token, key);
        }
        if constexpr (features.masks()) s[j] = scores[i].masked(token, key) ? kNegInf : s[j];
      }
    }
    const Band32& band = scores[0].band;
    if (first >= band.keys_of(group.end_token(p) - 1).lo &&
        first + 2 * N <= scores[0].before_drafts(band.keys_of(group.first_token(p)).hi))
      return;  // every row sees it
    const Band32::Range keys[2] = {band.keys_of(tokens[0]), band.keys_of(tokens[1])};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = j >> 1 & 1;
      const i32 key = first + column_of(j, quad);
      if (key >= keys[i].hi || (features.bounded_left && key < keys[i].lo)) s[j] = kNegInf;
    }
    if constexpr (features.tree) {
#pragma unroll
      for (int i = 0; i < 2; ++i) hide_by_tree(s, tree_row(scores[i], tokens[i], i), i, first, quad);
    }
  }
  DEV TreeRow<i32> tree_row(const RowScores& scores, i32 token, int i) const {
    if constexpr (kStoredTrees)
      return {group.seq_k - p.drafts, load_drafts(trees + 64 * static_cast<u32>(i))};
    else
      return scores.tree_row(token);
  }
  DEV auto drop(i32 first) const {
    if constexpr (features.dropout)
      return DropPacked{p.dropout, static_cast<u32>(group.batch), static_cast<u32>(first),
                        threadIdx.x % 2 != 0 ? at.row[1] : at.row[0]};
    else
      return KeepAll{};
  }
};

}  // namespace onepass::decode
