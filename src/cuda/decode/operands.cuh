// The operands of the products: Q's packed rows, and K and V as the cache has them.
#pragma once
#include "cuda/attention/descale.cuh"
#include "cuda/decode/packed_rows.cuh"
#include "cuda/decode/products_e4m3.cuh"
#include "cuda/mma/copy.cuh"
#include "cuda/mma/fragment.cuh"

namespace onepass::decode {

struct QueryOperand {  // this warp's rows of Q
  using Fragments = LeftFragments<kRowTiles, kLayout.q_pitch>;
  u32 tile;
  DEV u32 address() const { return Fragments::address(tile); }
  DEV Fragments operator()(u32 address, i32 k) const {
    Fragments a;
    a.load(address, k);
    return a;
  }
};

// All threads, or the copiers, copy all rows of the group; rows past the last one are zeros. now: through registers,
// because a wait for a copy is a wait for all copies of K and V that began before it.
template <bool now>
DEV void copy_query(u32 sm, const DecodeParams& p, const Group& g) {
  constexpr i32 kBytes = features.dim_qk * kElementBytes, kChunks = round_up(features.dim_qk, 16) * kElementBytes / 16;
  if (g.tiles != 0) {
#pragma unroll 1
    for (i32 at = kWgmma ? own_copier() : opaque_thread(); at < kBlockM * kChunks; at += kWgmma ? kCopiers : kThreads) {
      const i32 row = at / kChunks, chunk = at - row * kChunks, bytes = min(kBytes - chunk * 16, 16);
      const PackedRow x = PackedRow::of(p, g, row);
      const i64 offset = (features.packed ? 0 : g.batch) * p.q_stride[0] + x.head * p.q_stride[1] +
                         static_cast<i64>(g.q_begin + x.token) * p.q_stride[2];
      const char* const from = static_cast<const char*>(p.q) + offset * kElementBytes + chunk * 16;
      const u32 to = sm + kLayout.q + query_chunk(row, chunk);
      if constexpr (now)
        move_chunk<kBytes % 16 == 0>(to, from, row < g.rows(p) ? bytes : 0);
      else
        copy_chunk<kBytes % 16 == 0>(to, from, row < g.rows(p) ? bytes : 0);
    }
  }
  if constexpr (!now && !kWgmma) copies_commit();
}

// The scale of a row of Q.
DEV float query_factor(const DecodeParams& p, const Group& g, i32 row) {
  const PackedRow x = PackedRow::of(p, g, row);
  return q_factor(p, g.batch, x.head, x.token);
}

// K and V of q's type, or of e4m3 with scales for every 128 keys.
struct CacheKeys {
  float factor = 0.0f;       // of V's tiles in O; 0: there are none yet
  float k = 1.0f, v = 1.0f;  // of a tile
  u32 seen = 0;              // nan_bits

  // Ahead of where it is wanted: the answer is there by then.
  DEV void ask_k(const DecodeParams& p, const Group& g, i32 first) {
    if constexpr (kFp8Keys) k = kE4m3Unit * k_factor(p, g.batch, g.kv_head(p), first / kDescaleRows);
  }
  DEV void ask_v(const DecodeParams& p, const Group& g, i32 first) {
    if constexpr (kFp8Keys) v = v_factor(p, g.batch, g.kv_head(p), first / kDescaleRows);
  }
  template <i32 N, class Left>
  DEV void issue_scores(float (&s)[kRowTiles][N], u32 tile, const Left& query) {
    if constexpr (kFp8Keys)
      multiply_rows_e4m3<kQkDepth, kLayout.k_pitch>(s, tile, query, seen);
    else
      multiply_rows<kQkDepth, kLayout.k_pitch>(s, tile, query);
  }
  template <i32 N>
  DEV void scale(float (&s)[kRowTiles][N], u32 sm) const {
    if constexpr (kFp8Keys) {
      const u32 row = first_own_row() + own_thread() % 32 / 4;
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        const u32 units = sm + kLayout.units + 4 * (row + 16 * r);
        multiply_two_rows(s[r], k * load_one(units), k * load_one(units + 32));
      }
    }
  }
  // O in units of the next tile's factor.
  template <i32 N>
  DEV void take_factor(float (&o)[kRowTiles][N]) {
    if constexpr (kFp8Keys) {
      if (v != factor && factor != 0.0f) multiply_all(o, factor / v);
      factor = v;
    }
  }
  template <i32 N>
  DEV void issue_accumulate(float (&o)[kRowTiles][N], const Weights<kBlockN> (&w)[kRowTiles], u32 tile) {
    if constexpr (kFp8Keys)
      multiply_columns_e4m3<kBlockN, kLayout.v_pitch>(o, w, tile, seen);
    else
      multiply_columns<kBlockN, kLayout.v_pitch, kHalves>(o, w, tile, own_half());
  }
  // O as other types have it. Rows that a NaN may be in are not finite, and go to the fallback.
  template <i32 N>
  DEV void finish(float (&o)[kRowTiles][N]) const {
    if constexpr (kFp8Keys) {
      sort_output(o, factor * kE4m3Unit);
      if (!any_nan(seen)) return;
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) o[r][0] = o[r][2] = __int_as_float(0x7fffffff);
    }
  }

 private:
  template <i32 N>
  static DEV void multiply_all(float (&o)[kRowTiles][N], float by) {
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) multiply(o[r], by);
  }
};

}  // namespace onepass::decode
