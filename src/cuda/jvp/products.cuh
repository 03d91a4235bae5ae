// The products of a block, on those of the element type (mma/tangents_16.cuh, mma/tangents_f32.cuh).
#pragma once
#include "cuda/jvp/config.hpp"
#include "cuda/mma/tile_rows.cuh"
#include "cuda/sm80/share.cuh"

namespace onepass::cuda::jvp {

using namespace mma;  // tiles in shared memory, copies into them and products of them

constexpr JvpLayout kLayout = layout_of(jvp_features, config);
constexpr i32 kBlockM = config.block_m(), kBlockN = config.block_n, kStages = config.stages;
constexpr i32 kOutSums = sm80::own_sums(kOutN);  // of a warp, for each row tile

using QueryRows = TileRows<LeftFragments<kRowTiles, kLayout.q_pitch>>;  // of Q, or of its tangent

// k: where the block of K lies, its tangent's behind it.
DEV void block_scores(float (&s)[kRowTiles][kBlockN / 2], float (&ds)[kRowTiles][kBlockN / 2], u32 sm, u32 k) {
  const u32 q = sm + kLayout.q;
  multiply_both<kQkDepth, kLayout.k_pitch>(s, ds, k, k + kLayout.k_bytes, QueryRows{q}, QueryRows{q + kLayout.q_bytes});
}
// This warp's columns. v: where the block of V lies, its tangent's behind it.
DEV void block_sums(float (&o)[kRowTiles][kOutSums], float (&t)[kRowTiles][kOutSums],
                    const Weights<kBlockN> (&w)[kRowTiles], const Weights<kBlockN> (&x)[kRowTiles], u32 v) {
  accumulate_both<kBlockN, kLayout.v_pitch, kShare>(o, t, w, x, v, v + kLayout.v_bytes,
                                                    kShare == 1 ? 0 : sm80::own_part());
}

}  // namespace onepass::cuda::jvp
