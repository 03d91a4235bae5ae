// The two products of the forward pass, on the products of the element type (products_16.cuh, products_f32.cuh).
#pragma once
#include "cuda/sm80/forward/tile.cuh"
#include "cuda/sm80/share.cuh"

namespace onepass::sm80 {

constexpr i32 kPartN = kBlockN / kShare;   // keys of a block that a warp multiplies Q with
constexpr i32 kOutSums = own_sums(kOutN);  // of a warp, for each row tile

struct QueryOperand {  // this warp's rows of Q
  using Fragments = LeftFragments<kRowTiles, kLayout.q_pitch>;
  u32 tile;  // the block's
  Fragments kept[config.q_registers ? kQkDepth / kStep : 1];

  DEV void load() {  // once Q has come
    if constexpr (config.q_registers) {
#pragma unroll
      for (i32 k = 0; k < kQkDepth / kStep; ++k) kept[k].load(Fragments::address(tile), k);
    }
  }
  DEV u32 address() const { return config.q_registers ? 0 : Fragments::address(tile); }
  DEV Fragments operator()(u32 address, i32 k) const {
    if constexpr (config.q_registers) return kept[k];
    Fragments a;
    a.load(address, k);
    return a;
  }
};

// The addresses of this warp's rows of S in shared memory, four of a lane's elements 512 bytes behind the last ones.
DEV u32 shared_scores(u32 sm) { return sm + kLayout.scores + 4 * own_rows() * kBlockN + opaque_thread() % 32 * 16; }

// S of a block, or what warps that share rows have of it once all have stored their part: then in shared memory.
DEV void issue_scores(float (&s)[kRowTiles][kBlockN / 2], const QueryOperand& query, u32 tile, u32 sm) {
  if constexpr (kShare == 1) {
    multiply_rows<kQkDepth, kLayout.k_pitch>(s, tile, query);
  } else {
    float part[kRowTiles][kPartN / 2];
    multiply_rows<kQkDepth, kLayout.k_pitch>(part, tile + own_part() * kPartN * kLayout.k_pitch, query);
    u32 to = shared_scores(sm) + own_part() * (kPartN / 8 * 512);
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r, to += kBlockN / 8 * 512) {
#pragma unroll
      for (i32 j = 0; j < kPartN / 2; j += 4) {
        const auto bits = [&](i32 i) { return __float_as_uint(part[r][j + i]); };
        store_four(to + j * 128, bits(0), bits(1), bits(2), bits(3));
      }
    }
  }
}
// Behind a barrier.
DEV void take_scores(float (&s)[kRowTiles][kBlockN / 2], u32 sm) {
  if constexpr (kShare == 1) return;
  u32 from = shared_scores(sm);
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r, from += kBlockN / 8 * 512) {
#pragma unroll
    for (i32 j = 0; j < kBlockN / 2; j += 4) {
      u32 x[4];
      load_four(from + j * 128, x[0], x[1], x[2], x[3]);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) s[r][j + i] = __uint_as_float(x[i]);
    }
  }
}
DEV void issue_accumulate(float (&o)[kRowTiles][kOutSums], const Weights<kBlockN> (&w)[kRowTiles], u32 tile) {
  multiply_columns<kBlockN, kLayout.v_pitch, kShare>(o, w, tile, kShare == 1 ? 0 : own_part());
}

}  // namespace onepass::sm80
