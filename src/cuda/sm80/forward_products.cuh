// The two products of the forward pass, on the products of the element type (products_16.cuh, products_f32.cuh).
#pragma once
#include "cuda/sm80/forward_tile.cuh"

namespace onepass::sm80 {

struct QueryOperand {  // this warp's rows of Q
  using Fragments = LeftFragments<kRowTiles, kLayout.q_pitch>;
  u32 tile;  // the block's
  Fragments kept[config.q_registers ? kQkDepth / kStep : 1];

  DEV void load() {  // once Q has come
    if constexpr (config.q_registers) {
#pragma unroll
      for (i32 k = 0; k < kQkDepth / kStep; ++k) kept[k].load(address(), k);
    }
  }
  DEV u32 address() const { return Fragments::address(tile); }
};

DEV void issue_scores(float (&s)[kRowTiles][kBlockN / 2], const QueryOperand& query, u32 tile) {
  const u32 queries = config.q_registers ? 0 : query.address();
  multiply_rows<kQkDepth, kLayout.k_pitch>(s, tile, [&](i32 k) {
    QueryOperand::Fragments a;
    if constexpr (config.q_registers)
      a = query.kept[k];
    else
      a.load(queries, k);
    return a;
  });
}
DEV void issue_output(float (&o)[kRowTiles][kOutN / 2], const Weights<kBlockN> (&w)[kRowTiles], u32 tile) {
  multiply_columns<kBlockN, kLayout.v_pitch>(o, w, tile);
}

}  // namespace onepass::sm80
