// The two products of the forward pass, on the products of the element type (products_16.cuh, products_f32.cuh).
#pragma once
#include "cuda/sm80/forward/tile.cuh"

namespace onepass::sm80 {

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

DEV void issue_scores(float (&s)[kRowTiles][kBlockN / 2], const QueryOperand& query, u32 tile) {
  multiply_rows<kQkDepth, kLayout.k_pitch>(s, tile, query);
}
DEV void issue_accumulate(float (&o)[kRowTiles][kOutN / 2], const Weights<kBlockN> (&w)[kRowTiles], u32 tile) {
  multiply_columns<kBlockN, kLayout.v_pitch>(o, w, tile);
}

}  // namespace onepass::sm80
