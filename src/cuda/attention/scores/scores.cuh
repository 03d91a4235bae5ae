// The scores of a fragment (fragment.cuh): masks, transforms, dropout.
#pragma once
#include "cuda/attention/scores/score.cuh"

namespace onepass {

// Data of a block's scores that a lane loads while Q K^T runs.
struct BeforeScores {
  bool masks;  // whether `seen` has a 0
  RowBits seen;
};

// Hides what the tree of a lane's row i hides, from the keys from `first` on; one row after the other, because
// registers are dear.
template <int N>
DEV void hide_by_tree(float (&s)[N], const TreeRow<i32>& tree, int i, i32 first, u32 quad) {
#pragma unroll
  for (int from = 0; from < N; from += 32) {  // scores of both rows: 64 keys
    const unsigned long long seen = tree.window(first + column_of(from, quad));
#pragma unroll
    for (int j = from + 2 * i; j < min(N, from + 32); j += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) s[j + c] = seen >> (2 * (j - from - 2 * i) + c) & 1 ? s[j + c] : kNegInf;
    }
  }
}

// The context of a warp's sixteen rows of scores.
// kByGroups: border blocks are masked by groups of columns, and groups that no row sees are not read.
template <bool kByGroups>
struct TileScores : HeadScores {
  FragmentRows rows{};
  i32 warp_row = 0, below = 0;  // these are the sixteen rows from warp_row + below on, within the sequence
  const unsigned char* mask_tiles = nullptr;

  // The rows from first + offset on, within the sequence; offset is a constant.
  DEV void open(const WorkTile& x, i32 first, i32 offset = 0) {
    HeadScores::open(x);
    if constexpr (features.bool_mask) mask_tiles = onepass::mask_tiles(p, x);
    warp_row = first, below = offset;
    rows = FragmentRows::from(first + offset);
  }

  DEV i32 first_row() const { return opaque(warp_row) + below; }

  // The data of N scores against the keys from `first` on.
  template <int N>
  DEV BeforeScores before(i32 first) const {
    const u32 quad = threadIdx.x % 4;
    BeforeScores known{true, {~0u, ~0u}};
    if constexpr (features.bool_mask) {
      known.masks = mask_tiles[first / 32] != kNoneMasked;
#pragma unroll
      for (int i = 0; i < 2; ++i) known.seen.row[i] = bits_of<N>(rows.row[i], first, quad);
    }
    if constexpr (features.mask_mod) {
      known.masks = true;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (masked_by_mod(rows.row[j >> 1 & 1], first + column_of(j, quad)))
          known.seen.row[j >> 1 & 1] &= ~(1u << bit_of(j));
      }
      // Bits from here on: ptxas serialises the products (C7511) if it sees that a score of every lane is always
      // hidden.
      known.seen = {{opaque(known.seen.row[0]), opaque(known.seen.row[1])}};
    }
    return known;
  }

  // The same scores, with the bias element by element.
  template <int N>
  DEV void apply(float (&s)[N], i32 first, const BeforeScores& known) const {
    const u32 quad = threadIdx.x % 4;
    apply(s, first, known, [&](int j, float(&bias)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) bias[i] = bias_at(rows.row[i >> 1 & 1], first + column_of(j + i, quad));
    });
  }
  // load(j, bias): the bias of s[j] to s[j + 7]: 16 columns.
  template <int N, class Load>
  DEV void apply(float (&s)[N], i32 first, const BeforeScores& known, const Load& load) const {
    if constexpr (kTransforms) transform(s, first, threadIdx.x % 4, load);
    hide(s, first, known);
  }
  // Scores that masks, the band and a tree hide become -inf. False if none of the keys is hidden from any row.
  template <int N>
  DEV bool hide(float (&s)[N], i32 first, const BeforeScores& known) const {
    if constexpr (features.masks()) {
      if (known.masks) each(s, [&](int j, float& x) { x = known.seen.has(j) ? x : kNegInf; });
    }
    // Every row of the warp sees all of `full`: blocks inside it pay nothing. Bounds are worked out here, not kept:
    // registers are dear.
    const i32 row = first_row();
    const Band32::Range full = {band.keys_of(row + 15).lo, before_drafts(band.keys_of(row).hi)};
    if (first >= full.lo && first + 2 * N <= full.hi) return features.masks() && known.masks;
    const u32 lane = (features.plain() ? opaque_thread() : threadIdx.x) % 32, quad = lane % 4;
    const i32 lane_row = row + static_cast<i32>(lane / 4);
    const Band32::Range keys[2] = {band.keys_of(lane_row), band.keys_of(lane_row + 8)};
#pragma unroll
    for (int g = 0; g < N; g += kGroup<N>) {
      const i32 from = first + 2 * g;
      if (kByGroups && from >= full.lo && from + 2 * kGroup<N> <= full.hi) continue;
#pragma unroll
      for (int j = g; j < g + kGroup<N>; ++j) {
        const int i = j >> 1 & 1;
        const i32 key = first + column_of(j, quad);
        if (key >= keys[i].hi || (features.bounded_left && key < keys[i].lo)) s[j] = kNegInf;
      }
    }
    if constexpr (features.tree) {
#pragma unroll
      for (int i = 0; i < 2; ++i) hide_by_tree(s, tree_row(lane_row + 8 * i), i, first, quad);
    }
    return true;
  }
  // True if a row of the warp sees a key before `end`, or one from `first` on.
  DEV bool sees_before(i32 end) const { return !features.bounded_left || band.keys_of(first_row()).lo < end; }
  DEV bool sees_from(i32 first) const { return !features.bounded_right || first < band.keys_of(first_row() + 15).hi; }
  // How many columns of the keys from `first` on are worth reading: no row of the warp sees the others.
  template <int N>
  DEV i32 columns(i32 first) const {
    return kByGroups && features.bounded_right ? band.keys_of(first_row() + 15).hi - first : 2 * N;
  }

  template <int N, class Load>
  DEV void transform(float (&s)[N], i32 first, u32 quad, const Load& load) const {
#pragma unroll
    for (int j = 0; j < N; j += 8) {
      float bias[8] = {};
      if constexpr (features.bias != ScalarType::none) load(j, bias);
#pragma unroll
      for (int i = j; i < j + 8; ++i) {
        if (features.pair_tanh && i % 2 == 0) cap_pair(s[i], s[i + 1]);
        const i32 row = rows.row[i >> 1 & 1], key = first + column_of(i, quad);
        s[i] = features.pair_tanh ? after_cap(s[i], bias[i - j], row, key) : score(s[i], bias[i - j], row, key);
      }
    }
  }
  // The mask's bits of N scores of a row, two of every eight columns.
  template <int N>
  DEV u32 bits_of(i32 row, i32 first, u32 quad) const {
    static_assert(N % 16 == 0 || N == 8, "blocks of whole words, or half of one");
    const u32* const from = mask_row(row) + first / 32;
    u32 bits = 0;
#pragma unroll
    for (int k = 0; k < ceil_div(N, 16); ++k) bits |= (from[k] >> first % 32 >> 2 * quad & 0x03030303u) << 2 * k;
    return bits;
  }

  DEV auto drop(i32 first) const {
    if constexpr (features.dropout) {
      return DropPair{p.dropout,          batch, head, static_cast<u32>(rows.row[0]), static_cast<u32>(first),
                      opaque_thread() % 4};
    } else {
      return KeepAll{};
    }
  }
};

}  // namespace onepass
