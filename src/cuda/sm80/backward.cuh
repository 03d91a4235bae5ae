// The backward pass for sm_80 and later: dK, dV and the sums of dQ, by mma.sync and cp.async.
//
// A block of threads draws tiles of keys from a counter; each of its warps holds row_tiles times sixteen keys, alone,
// while the query rows that see them pass, block after block, of every query head that reads them:
//
//   S^T = K Q^T                fragments from shared memory; P^T = exp(S - LSE) in registers
//   dV += P^T dO               P^T's fragment layout is the A-operand layout
//   dP^T = V dO^T              dS^T = P^T (dP^T - D) times the score's derivative, in registers
//   dK += dS^T Q
//   dQ += dS K                 the only sum over keys: dS^T of all warps meets in shared memory, each warp takes some
//                              rows and columns, which are added to fp32 sums in global memory
//
// The products are those of the file that the config includes. attention/backward_pre.cuh comes before this kernel, and
// attention/backward_post.cuh after it. README.md has the schedule and the budgets.
#pragma once
#include "cuda/sm80/backward_steps.cuh"

namespace onepass::sm80 {

// The work of a step that a warp whose keys some row sees does alone: P and dS of its keys, dV, dK.
DEV void differentiate(const BackwardParams& p, u32 sm, u32 work, const RowStep& step,
                       float (&dk)[kRowTiles][kQkDepth / 2], float (&dv)[kRowTiles][kOutN / 2], SlopeSums& slopes) {
  float s[kRowTiles][kBlockM / 2], dp[kRowTiles][kBlockM / 2];
  Weights<kBlockM> w[kRowTiles];
  Slopes<kBlockM / 2> derivative[kRowTiles];
  Kept<kBlockM / 2> kept[kRowTiles];
  bool some_hidden[kRowTiles];
  const i32 first_row = step.m * kBlockM;
  multiply_rows<kQkDepth, kLayout.qk_pitch>(s, step.q(sm), rows_at<kLayout.qk_pitch>(sm + kLayout.k));
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float reference[kBlockM / 4];
    load_statistics(reference, step.statistics(sm));
    some_hidden[r] = scores.weigh(s[r], derivative[r], reference, first_row);
    kept[r] = scores.kept<kBlockM / 2>(first_row);
    pack_kept(s[r], kept[r], w[r]);
  }
  if constexpr (backward_features.dv) multiply_columns<kBlockM, kLayout.v_pitch>(dv, w, step.dout(sm));
  if constexpr (!backward_features.scores()) return;
  multiply_rows<kOutN, kLayout.v_pitch>(dp, step.dout(sm), rows_at<kLayout.v_pitch>(sm + kLayout.v));
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const KeyScores scores = scores_of(p, tile_in_hand(work, p), step, r);
    float d[kBlockM / 4];
    load_statistics(d, step.statistics(sm) + 4 * kBlockM);
    scores.differentiate(s[r], dp[r], derivative[r], kept[r], d, some_hidden[r], first_row, slopes.adder(scores, r));
    pack_kept(dp[r], Kept<kBlockM / 2>::all(), w[r]);
    if constexpr (backward_features.dq)
      store_results<kBlockM, kLayout.ds_pitch>(w[r], sm + kLayout.ds, own_keys() + 16 * r);
  }
  if constexpr (backward_features.dk) multiply_columns<kBlockM, kLayout.qk_pitch>(dk, w, step.q(sm));
}

// Every warp of the block works on the tile of keys that lies at `work`; while the first copies are under way,
// `meanwhile` is called.
template <class Meanwhile>
DEV void attend(u32 sm, u32 work, const BackwardParams& p, const Meanwhile& meanwhile) {
  const auto tile = [&] { return tile_in_hand(work, p); };  // its registers are needed in between
  float dk[kRowTiles][kQkDepth / 2], dv[kRowTiles][kOutN / 2];
  clear(dk);
  clear(dv);
  SlopeSums slopes;
  if constexpr (backward_features.dslopes) slopes.open(p, tile());
  copy_keys(sm, p, tile());
  RowStep step = first_step(p, tile());
  if constexpr (kStages == 2) copy_queries(sm, p, tile(), step);
  copies_commit();
  meanwhile();
#pragma unroll 1
  while (step.exists(p, tile())) {
    if constexpr (kStages == 1) {
      __syncthreads();  // nobody reads the last step's blocks any more
      copy_queries(sm, p, tile(), step);
      copies_commit();
    }
    copies_wait<0>();
    __syncthreads();
    const RowStep next = step.next(p, tile());
    if constexpr (kStages == 2) {
      copy_queries(sm, p, tile(), next);
      copies_commit();
    }
    if (sees(p, tile(), step))
      differentiate(p, sm, work, step, dk, dv, slopes);
    else if constexpr (backward_features.dq)
      clear_ds(sm);
    if constexpr (backward_features.dq) {
      __syncthreads();  // dS is whole
      add_dq(p, sm, tile(), step);
    }
    if constexpr (backward_features.dslopes) slopes.flush(p, tile(), step, next);
    step = next;
  }
  copies_wait<0>();
  store_keys(sm, p, tile(), dk, dv);
}

}  // namespace onepass::sm80

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm80::kThreads, onepass::sm80::config.blocks)
    attention_backward(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using namespace onepass::sm80;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const auto warp = [] { return opaque_thread() / 32; };
  const u32 work = sm + kLayout.work, next = work + 64;  // the tile in hand, the one behind it
  const KeyTiles tiles{p};
  const auto take = [&](i32 number) {  // by the first warp, for all
    const KeyTile x = tiles.order.tile(number);
    if (opaque_thread() == 0) store_tile(next, x);
  };
  // Deterministic: a block waits for tiles of lower numbers, so those are drawn first, by blocks that run.
  const auto draw = [&] { return tiles.draw() - (backward_features.deterministic ? gridDim.x : 0); };
  const auto take_next = [&] {
    if (warp() == 0) take(draw());
  };
  if (opaque_thread() % 32 == 0) store_word(sm + kLayout.fallback + 4 * warp(), -1);
  if (warp() == 0) take(backward_features.deterministic ? draw() : blockIdx.x);
  for (;;) {
    __syncthreads();  // the next tile is known, and nobody needs this one's shared memory any more
    const KeyTile x = load_key_tile(next);
    if (x.key < 0) break;
    if (opaque_thread() == 0) store_tile(work, x);
    __syncthreads();
    attend(sm, work, p, take_next);
  }
  if (warp() == 0) tiles.reset();
  __syncwarp();  // what this warp has stored stands before what it stores again
  run_key_fallback(p, load_word(sm + kLayout.fallback + 4 * warp()));
}
