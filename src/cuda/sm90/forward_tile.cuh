// Constants of the config, the tiles of work, and what a warpgroup knows of its rows' scores.
#pragma once
#include "cuda/device/scores.cuh"
#include "cuda/device/softmax.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/sm90/forward_config.hpp"

namespace onepass::sm90 {

constexpr ForwardLayout kLayout = layout_of(config);
constexpr u32 kGroups = config.groups, kBlockM = 64 * kGroups, kBlockN = config.block_n;
constexpr u32 kStages = config.stages, kQStages = config.q_stages;
constexpr u32 kQkBlocks = padded(config.dim_qk, 64) / 64, kVBlocks = padded(config.dim_v, 64) / 64;  // of 64 columns
constexpr u32 kQkSteps = padded(config.dim_qk, 16) / 16;                                             // of Q K^T's depth
constexpr u32 kOutN = padded(config.dim_v, 16);                                                      // columns of P V
constexpr u32 kFullQ = kLayout.barriers, kEmptyQ = kFullQ + 8 * kQStages, kFullK = kEmptyQ + 8 * kQStages,
              kEmptyK = kFullK + 8 * kStages, kFullV = kEmptyK + 8 * kStages, kEmptyV = kFullV + 8 * kStages;
template <bool bf16>
struct ElementOf {
  using Type = Bf16;
};
template <>
struct ElementOf<false> {
  using Type = F16;
};
using Element = ElementOf<config.is_bf16>::Type;

// A tile of work: kBlockM query rows of one head against key blocks [n_lo, n_hi), visited from the last to the first.
struct TileWork {
  i32 row = -1;                // first query row within its sequence; -1: no more work
  i32 head, batch, map_batch;  // map_batch: coordinate in the tensor maps, 0 if packed
  i32 q_begin, k_begin, seq_q, seq_k;
  i32 n_lo, n_hi;
};
using Band = BasicBandMask<i32>;
DEV Band band_of(const ForwardParams& p, i32 seq_q, i32 seq_k) {
  return {seq_q, seq_k, p.align_bottom ? seq_k - seq_q : 0, config.bounded_left ? p.left : -1,
          config.bounded_right ? p.right : -1};
}

// Tiles in the order in which they are drawn: the heads of a group together (their K and V stay in L2); within a
// sequence the last rows first where the band is bounded right, since they see most. Packed: head by head, sequence by
// sequence; the tiles of a sequence are counted from its length, so none is drawn in vain. Every method is called by
// one whole warp.
struct TileSource {
  const ForwardParams& p;
  i32 taken = -1, tiles = 0, per_head = 0;

  DEV explicit TileSource(const ForwardParams& params) : p(params), tiles(params.tiles) {
    if constexpr (config.packed) {
      for (i32 b = threadIdx.x % 32; b < p.batch; b += 32) per_head += tiles_of(b);
#pragma unroll
      for (i32 step = 16; step > 0; step /= 2) per_head += __shfl_xor_sync(0xffffffffu, per_head, step);
      tiles = per_head * p.heads;
    }
  }
  DEV i32 tiles_of(i32 b) const {
    return (p.cu_q[b + 1] - p.cu_q[b] + static_cast<i32>(kBlockM) - 1) / static_cast<i32>(kBlockM);
  }

  DEV TileWork next() {
    if (taken < 0)
      taken = blockIdx.x;  // the grid has at most as many blocks as there are tiles
    else {
      u32 t = 0;
      if (threadIdx.x % 32 == 0) t = gridDim.x + atomicAdd(p.counters, 1u);
      taken = warp_uniform(t);
    }
    TileWork x;
    if (taken >= tiles) return x;
    i32 m, of;
    if constexpr (config.packed) {
      x.head = taken / per_head;
      x.map_batch = 0;
      m = find_sequence(taken - x.head * per_head, x.batch);
      of = tiles_of(x.batch);
      x.q_begin = p.cu_q[x.batch], x.seq_q = p.cu_q[x.batch + 1] - x.q_begin;
      x.k_begin = p.cu_k[x.batch], x.seq_k = p.cu_k[x.batch + 1] - x.k_begin;
    } else {
      const i32 per = p.heads_together * p.m_tiles, g = taken / per, r = taken - g * per;
      const i32 in_group = min(p.heads_together, p.heads * p.batch - g * p.heads_together);
      m = r / in_group;
      of = p.m_tiles;
      const i32 bh = g * p.heads_together + (r - m * in_group);
      x.batch = x.map_batch = bh / p.heads;
      x.head = bh - x.batch * p.heads;
      x.q_begin = x.k_begin = 0;
      x.seq_q = p.seq_q, x.seq_k = p.seq_k;
    }
    x.row = static_cast<i32>(kBlockM) * (config.bounded_right ? of - 1 - m : m);
    const Band::Range keys =
        band_of(p, x.seq_q, x.seq_k).key_range(x.row, min(x.row + static_cast<i32>(kBlockM), x.seq_q));
    x.n_lo = keys.lo / static_cast<i32>(kBlockN);
    x.n_hi = (keys.hi + static_cast<i32>(kBlockN) - 1) / static_cast<i32>(kBlockN);
    return x;
  }
  // The sequence that holds tile r of a head, 32 sequences at a time; returns the tile's number within it.
  DEV i32 find_sequence(i32 r, i32& batch) const {
    const i32 lane = threadIdx.x % 32;
    for (i32 first = 0;; first += 32) {
      const i32 own = first + lane < p.batch ? tiles_of(first + lane) : 0;
      i32 upto = own;  // inclusive prefix sum
#pragma unroll
      for (i32 step = 1; step < 32; step *= 2) {
        const i32 before = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += before;
      }
      const u32 beyond = __ballot_sync(0xffffffffu, upto > r);
      if (beyond) {
        const i32 at = __ffs(static_cast<int>(beyond)) - 1;
        batch = first + at;
        return r - __shfl_sync(0xffffffffu, upto - own, at);
      }
      r -= __shfl_sync(0xffffffffu, upto, 31);
    }
  }
  // The last block leaves the counters as it found them.
  DEV void leave() {
    if (threadIdx.x % 32 == 0 && atomicAdd(p.counters + 1, 1u) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
  }
};

DEV void store_tile(u32 to, const TileWork& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.row), "r"(x.head), "r"(x.batch),
               "r"(x.map_batch)
               : "memory");
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(x.q_begin), "r"(x.k_begin), "r"(x.seq_q),
               "r"(x.seq_k)
               : "memory");
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + 32), "r"(x.n_lo), "r"(x.n_hi) : "memory");
}
DEV TileWork load_tile(u32 from) {
  TileWork x;
  i32* const fields[] = {&x.row,     &x.head,  &x.batch, &x.map_batch, &x.q_begin,
                         &x.k_begin, &x.seq_q, &x.seq_k, &x.n_lo,      &x.n_hi};
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    i32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from + 4 * i) : "memory");
    *fields[i] = static_cast<i32>(warp_uniform(value));
  }
  return x;
}

// ----------------------------------------------------------------------------------------------------------------
// scores
constexpr bool kTransforms =
    config.softcap || config.alibi || config.bias != Extra::none;  // scores leave apply() in log2 units

DEV float bias_at(const ForwardParams& p, i64 at) {
  if constexpr (config.bias == Extra::f32)
    return static_cast<const float*>(p.bias)[at];
  else if constexpr (config.bias == Extra::f16)
    return F16::unpack(static_cast<const u16*>(p.bias)[at]);
  else
    return Bf16::unpack(static_cast<const u16*>(p.bias)[at]);
}

struct TileScores {
  const ForwardParams& p;
  u32 group;
  FragmentRows rows{};
  i32 shift = 0, last_row = 0, last_key = 0;
  float slope = 0;
  u32 batch = 0, head = 0;

  DEV float scale() const { return kTransforms ? 1.0f : p.scale_log2; }

  DEV void open(const TileWork& x) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const Band band = band_of(p, x.seq_q, x.seq_k);
    const i32 first = x.row + static_cast<i32>(group) * 64;
    shift = band.shift;
    batch = x.batch, head = x.head;
    last_row = x.seq_q - 1, last_key = x.seq_k - 1;
    rows.full_lo = band.keys_of(first + 63).lo;
    rows.full_hi = band.keys_of(first).hi;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows.row[i] = first + static_cast<i32>(warp * 16 + lane / 4 + 8 * i);
      const Band::Range keys = band.keys_of(rows.row[i]);
      rows.lo[i] = keys.lo;
      rows.hi[i] = keys.hi;
    }
    if constexpr (config.alibi)
      slope = static_cast<float>(kLog2e) * p.slopes[x.batch * p.slope_stride[0] + x.head * p.slope_stride[1]];
  }

  DEV void apply(float (&s)[kBlockN / 2], i32 n) const {
    const u32 quad = threadIdx.x % 4;
    const i32 first = n * static_cast<i32>(kBlockN);
    if constexpr (kTransforms) transform(s, first, quad);
    if constexpr (config.bool_mask) hide(s, first, quad);
    if (first >= rows.full_lo && first + static_cast<i32>(kBlockN) <= rows.full_hi)
      return;  // interior blocks pay nothing
#pragma unroll
    for (int j = 0; j < static_cast<int>(kBlockN / 2); ++j) {
      const int i = j >> 1 & 1;
      const i32 key = first + column_of(j, quad);
      if (key >= rows.hi[i] || (config.bounded_left && key < rows.lo[i])) s[j] = kNegInf;
    }
  }

  DEV void transform(float (&s)[kBlockN / 2], i32 first, u32 quad) const {
#pragma unroll
    for (int j = 0; j < static_cast<int>(kBlockN / 2); ++j)
      s[j] = transformed(s[j], rows.row[j >> 1 & 1], first + column_of(j, quad));
  }
  DEV void hide(float (&s)[kBlockN / 2], i32 first, u32 quad) const {
#pragma unroll
    for (int j = 0; j < static_cast<int>(kBlockN / 2); ++j) {
      if (hidden(rows.row[j >> 1 & 1], first + column_of(j, quad))) s[j] = kNegInf;
    }
  }

  // One score in log2 units, from the plain dot product. Rows and keys past the end read the last one's bias, which
  // exists.
  DEV float transformed(float dot, i32 row, i32 key) const {
    float x = config.softcap ? p.cap_out * tanh_of(p.cap_in * dot) : p.scale_log2 * dot;
    if constexpr (config.bias != Extra::none)
      x += static_cast<float>(kLog2e) * bias_at(p, spread(p.bias_stride, row, key));
    if constexpr (config.alibi) x -= slope * static_cast<float>(abs(row + shift - key));
    return x;
  }
  DEV bool hidden(i32 row, i32 key) const { return p.bool_mask[spread(p.mask_stride, row, key)] == 0; }
  DEV i64 spread(const long long (&stride)[4], i32 row, i32 key) const {
    return batch * stride[0] + head * stride[1] + min(row, last_row) * stride[2] + min(key, last_key) * stride[3];
  }

  DEV auto drop(i32 n) const {
    if constexpr (config.dropout) {
      return DropPair{p.dropout,      batch, head, static_cast<u32>(rows.row[0]), static_cast<u32>(n) * kBlockN,
                      threadIdx.x % 4};
    } else {
      return KeepAll{};
    }
  }
};

}  // namespace onepass::sm90
