// What a kernel knows of its rows' scores: masks, transforms, dropout, for the fragment layout of device/scores.cuh.
#pragma once
#include "cuda/attention/fragment.cuh"
#include "cuda/attention/softmax.cuh"

#include "cuda/attention/elements.cuh"
#include "cuda/attention/mods.cuh"
#include "cuda/attention/tile_scheduler.cuh"

namespace onepass {

// Whether border blocks are taken by groups of columns. Measured, causal 1k: d64 362 -> 376 TFLOP/s, d128 no gain and
// at 4k -1 %.
constexpr bool kByGroups = features.dim_v <= 64;
// Then scores leave apply() in natural units, or in units of the cap where nothing follows it: the softmax multiplies
// them once more in any case, and so their own last product is saved.
constexpr bool kTransforms = features.transforms();
constexpr bool kCapLast = features.softcap && features.bias == Type::none && !features.alibi && !features.score_mod;

// The unit of the scores that the softmax finds.
DEV auto unit_of(const ForwardParams& p) {
  constexpr float kNatural = static_cast<float>(kLog2e);
  if constexpr (!kTransforms)
    return Products{p.scale_log2, p.scale};
  else
    return kCapLast ? Transformed{kNatural * p.cap_out, p.cap_out} : Transformed{kNatural, 1.0f};
}

// What a lane knows of its scores of a block before they are there: asked for under Q K^T.
struct BeforeScores {
  bool hides;  // whether `seen` has a 0
  RowBits seen;
};

// What a warp knows of its sixteen rows' scores.
struct TileScores {
  const ForwardParams& p;
  FragmentRows rows{};
  Band band;
  i32 warp_row = 0, below = 0;  // these are the sixteen rows from warp_row + below on, within the sequence
  float slope = 0;
  u32 batch = 0, head = 0;
  const unsigned char* mask_tiles = nullptr;

  DEV auto unit() const { return unit_of(p); }

  // The rows from first + offset on, within the sequence; offset is a constant.
  DEV void open(const TileWork& x, i32 first, i32 offset = 0) {
    band = band_of(p, x.seq_q, x.seq_k);
    batch = x.batch, head = x.head;
    if constexpr (features.bool_mask) mask_tiles = onepass::mask_tiles(p, x);
    warp_row = first, below = offset;
    rows = FragmentRows::from(first + offset);
    if constexpr (features.alibi) slope = p.slopes[x.batch * p.slope_stride[0] + x.head * p.slope_stride[1]];
  }

  DEV i32 first_row() const { return here(warp_row) + below; }

  // Of N scores against the keys from `first` on.
  template <int N>
  DEV BeforeScores before(i32 first) const {
    const u32 quad = threadIdx.x % 4;
    BeforeScores known{true, {~0u, ~0u}};
    if constexpr (features.bool_mask) {
      known.hides = mask_tiles[first / 32] != kHidesNone;
#pragma unroll
      for (int i = 0; i < 2; ++i) known.seen.row[i] = bits_of<N>(rows.row[i], first, quad);
    }
    if constexpr (features.mask_mod) {
      known.hides = true;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (hidden_by_mod(rows.row[j >> 1 & 1], first + column_of(j, quad)))
          known.seen.row[j >> 1 & 1] &= ~(1u << bit_of(j));
      }
      // Bits from here on: ptxas serialises the products (C7511) if it sees that a score of every lane is always
      // hidden.
      known.seen = {{here(known.seen.row[0]), here(known.seen.row[1])}};
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
    if constexpr (features.hides()) {
      if (known.hides) {
#pragma unroll
        for (int j = 0; j < N; ++j) s[j] = known.seen.has(j) ? s[j] : kNegInf;
      }
    }
    // Every row of the warp sees all of `full`: blocks inside it pay nothing. Bounds are worked out here, not kept:
    // registers are dear.
    const i32 row = first_row();
    const Band::Range full = {band.keys_of(row + 15).lo, band.keys_of(row).hi};
    if (first >= full.lo && first + 2 * N <= full.hi) return;
    const u32 lane = (features.plain() ? thread_here() : threadIdx.x) % 32, quad = lane % 4;
    const i32 lane_row = row + static_cast<i32>(lane / 4);
    const Band::Range keys[2] = {band.keys_of(lane_row), band.keys_of(lane_row + 8)};
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
  }
  // Whether any row of the warp sees a key before `end`, or one from `first` on.
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
      if constexpr (features.bias != Type::none) load(j, bias);
#pragma unroll
      for (int i = j; i < j + 8; ++i) {
        if (features.pair_tanh && i % 2 == 0) tanh_pair(2 * static_cast<float>(kLog2e) * p.cap_in, s[i], s[i + 1]);
        const float x = features.pair_tanh ? s[i] : scaled(s[i]);
        s[i] = transformed(x, bias[i - j], rows.row[i >> 1 & 1], first + column_of(i, quad));
      }
    }
  }
  DEV const u32* bits_of(i32 row) const {
    return p.mask.bits + batch * p.mask.bits_stride[0] + head * p.mask.bits_stride[1] +
           min(row, band.seq_q - 1) * p.mask.bits_stride[2];
  }
  // The mask's bits of N scores of a row, two of every eight columns.
  template <int N>
  DEV u32 bits_of(i32 row, i32 first, u32 quad) const {
    static_assert(N % 16 == 0 || N == 8, "blocks of whole words, or half of one");
    const u32* const from = bits_of(row) + first / 32;
    u32 bits = 0;
#pragma unroll
    for (int k = 0; k < (N + 15) / 16; ++k) bits |= (from[k] >> first % 32 >> 2 * quad & 0x03030303u) << 2 * k;
    return bits;
  }

  // Rows and keys past the end read the last one's bias, which exists.
  DEV float bias_at(i32 row, i32 key) const {
    if constexpr (features.bias != Type::none)
      return element_at<features.bias>(p.bias, spread(p.bias_stride, row, key));
    else
      return 0.0f;
  }
  // One score: the dot product scaled, or capped in units of the cap; and what follows.
  DEV float scaled(float dot) const { return features.softcap ? tanh_of(p.cap_in * dot) : p.scale * dot; }
  DEV float transformed(float x, float bias, i32 row, i32 key) const {
    if constexpr (features.softcap && !kCapLast) x *= p.cap_out;
    if constexpr (features.bias != Type::none) x += bias;
    if constexpr (features.alibi) x -= slope * static_cast<float>(abs(row + band.shift - key));
    if constexpr (features.score_mod)
      x = user::score_mod(x, static_cast<i32>(batch), static_cast<i32>(head), row, key, p.mod_buffers);
    return x;
  }
  DEV bool hidden_by_mod(i32 row, i32 key) const {
    return !user::mask_mod(static_cast<i32>(batch), static_cast<i32>(head), row, key, p.mod_buffers);
  }
  DEV bool hidden(i32 row, i32 key) const {
    bool seen = true;
    if constexpr (features.bool_mask) seen = bits_of(row)[key / 32] >> key % 32 & 1;
    if constexpr (features.mask_mod) seen = seen && !hidden_by_mod(row, key);
    return !seen;
  }
  DEV i64 spread(const long long (&stride)[4], i32 row, i32 key) const {
    return batch * stride[0] + head * stride[1] + min(row, band.seq_q - 1) * stride[2] +
           min(key, band.seq_k - 1) * stride[3];
  }

  DEV auto drop(i32 first) const {
    if constexpr (features.dropout) {
      return DropPair{p.dropout,        batch, head, static_cast<u32>(rows.row[0]), static_cast<u32>(first),
                      thread_here() % 4};
    } else {
      return KeepAll{};
    }
  }
};

}  // namespace onepass
