// What a kernel knows of its rows' scores: masks, transforms, dropout, for the fragment layout of device/scores.cuh.
#pragma once
#include "cuda/device/scores.cuh"
#include "cuda/device/softmax.cuh"

#include "cuda/attention/elements.cuh"
#include "cuda/attention/mods.cuh"
#include "cuda/attention/tiles.cuh"

namespace onepass {

// Whether border blocks are taken by groups of columns. Measured, causal 1k: d64 362 -> 376 TFLOP/s, d128 no gain and
// at 4k -1 %.
constexpr bool kByGroups = features.dim_v <= 64;
// Then scores leave apply() in log2 units.
constexpr bool kTransforms = features.transforms();

// What a warp knows of its sixteen rows' scores.
struct TileScores {
  const ForwardParams& p;
  FragmentRows rows{};
  Band band;
  i32 warp_row = 0, below = 0;  // these are the sixteen rows from warp_row + below on, within the sequence
  float slope = 0;
  u32 batch = 0, head = 0;
  const unsigned char* mask_tiles = nullptr;

  DEV float scale() const { return kTransforms ? 1.0f : p.scale_log2; }

  // The rows from first + offset on, within the sequence; offset is a constant.
  DEV void open(const TileWork& x, i32 first, i32 offset = 0) {
    band = band_of(p, x.seq_q, x.seq_k);
    batch = x.batch, head = x.head;
    if constexpr (features.bool_mask) mask_tiles = onepass::mask_tiles(p, x);
    warp_row = first, below = offset;
    rows = FragmentRows::from(first + offset);
    if constexpr (features.alibi)
      slope = static_cast<float>(kLog2e) * p.slopes[x.batch * p.slope_stride[0] + x.head * p.slope_stride[1]];
  }

  DEV i32 first_row() const { return here(warp_row) + below; }

  // Scores against the keys from `first` on, with the bias element by element.
  template <int N>
  DEV void apply(float (&s)[N], i32 first) const {
    const u32 quad = threadIdx.x % 4;
    apply(s, first, [&](int j, float(&bias)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) bias[i] = bias_at(rows.row[i >> 1 & 1], first + column_of(j + i, quad));
    });
  }
  // load(j, bias): the bias of s[j] to s[j + 7]: 16 columns.
  template <int N, class Load>
  DEV void apply(float (&s)[N], i32 first, const Load& load) const {
    if constexpr (kTransforms) transform(s, first, threadIdx.x % 4, load);
    if constexpr (features.hides()) hide(s, first, threadIdx.x % 4);
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
      for (int i = j; i < j + 8; ++i)
        s[i] = transformed(s[i], bias[i - j], rows.row[i >> 1 & 1], first + column_of(i, quad));
    }
  }
  template <int N>
  DEV void hide(float (&s)[N], i32 first, u32 quad) const {
    if constexpr (features.bool_mask) {
      if (mask_tiles[first / 32] != kHidesNone) hide_bits(s, first, quad);
    }
    if constexpr (features.mask_mod) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (hidden_by_mod(rows.row[j >> 1 & 1], first + column_of(j, quad))) s[j] = kNegInf;
      }
    }
  }
  template <int N>
  DEV void hide_bits(float (&s)[N], i32 first, u32 quad) const {
    static_assert(N % 16 == 0 || N == 8, "blocks of whole words, or half of one");
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32* const from = bits_of(rows.row[i]) + first / 32;
      u32 w[(N + 15) / 16];
#pragma unroll
      for (int k = 0; k < (N + 15) / 16; ++k) w[k] = from[k] >> first % 32 >> 2 * quad;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if ((j >> 1 & 1) == i && (w[j / 16] >> (8 * (j / 4 % 4) + j % 2) & 1) == 0) s[j] = kNegInf;
      }
    }
  }
  DEV const u32* bits_of(i32 row) const {
    return p.mask.bits + batch * p.mask.bits_stride[0] + head * p.mask.bits_stride[1] +
           min(row, band.seq_q - 1) * p.mask.bits_stride[2];
  }

  // Rows and keys past the end read the last one's bias, which exists.
  DEV float bias_at(i32 row, i32 key) const {
    if constexpr (features.bias != Type::none)
      return element_at<features.bias>(p.bias, spread(p.bias_stride, row, key));
    else
      return 0.0f;
  }
  // One score in log2 units, from the plain dot product.
  DEV float transformed(float dot, float bias, i32 row, i32 key) const {
    float x = features.softcap ? p.cap_out * tanh_of(p.cap_in * dot) : p.scale_log2 * dot;
    if constexpr (features.bias != Type::none) x += static_cast<float>(kLog2e) * bias;
    if constexpr (features.alibi) x -= slope * static_cast<float>(abs(row + band.shift - key));
    if constexpr (features.score_mod)
      x = static_cast<float>(kLog2e) * user::score_mod(x * static_cast<float>(kLn2), static_cast<i32>(batch),
                                                       static_cast<i32>(head), row, key, p.mod_buffers);
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
      return DropPair{p.dropout, batch, head, static_cast<u32>(rows.row[0]), static_cast<u32>(first), threadIdx.x % 4};
    } else {
      return KeepAll{};
    }
  }
};

}  // namespace onepass
