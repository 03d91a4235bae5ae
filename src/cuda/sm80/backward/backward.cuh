// The backward pass for sm_80 and later: dK, dV and the sums of dQ, by mma.sync and cp.async.
//
// A CTA draws tiles of keys from a counter; each of its warps holds row_tiles times sixteen keys, alone,
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
// attention/backward/post.cuh after it. README.md has the schedule and the budgets.
#pragma once
#include "cuda/sm80/backward/epilogue.cuh"
#include "cuda/sm80/backward/pass.cuh"

namespace onepass::sm80 {

// A step of a warp: dV and dK of its keys, and dS for dQ. Warps that share keys hand each other parts of P and dS.
DEV void differentiate(const BackwardParams& p, u32 sm, u32 work, const RowStep& step, bool seen,
                       float (&dk)[kRowTiles][kKSums], float (&dv)[kRowTiles][kVSums], SlopeSums& slopes) {
  const u32 ds = sm + kLayout.ds, weights = sm + kLayout.weights;
  const auto each_dout = [&](const auto& add) {
#pragma unroll
    for (i32 i = 0; i < kLayout.dout_parts; ++i) add(step.dout(sm) + i * kLayout.dout_bytes);
  };
  // P of the others: at once, or behind the barrier of dS if that has a place of its own.
  constexpr bool kLater = config.apart && backward_features.dv && backward_features.scores();
  const auto stored_weights = [&] {
    each_dout([&](u32 rows) { multiply_stored<kLayout.v_pitch>(weights, dv, rows); });
  };
  const auto on_weights = [&](const Weights<kPartM>(&w)[kRowTiles]) {
    if constexpr (!backward_features.dv) return;
    if constexpr (kRowParts > 1) store_part(weights, w);
    each_dout([&](u32 rows) { multiply_own<kLayout.v_pitch>(dv, w, rows); });
    if constexpr (!kLater) {
      meet_sharers();
      stored_weights();
    }
  };
  const auto on_ds = [&](const Weights<kPartM>(&w)[kRowTiles]) {
    if constexpr (backward_features.dv && !kLater) meet_sharers();  // P, in the same place, has been read
    if constexpr (backward_features.dq || kRowParts > 1) store_part(ds, w);
    if constexpr (backward_features.dk) multiply_own<kLayout.qk_pitch>(dk, w, step.q(sm));
  };
  if (seen) {
    pass<backward_features.scores()>(
        p, sm, work, step, on_weights, [&](const KeyScores& scores, i32 r) { return slopes.adder(scores, r); }, on_ds);
  } else if constexpr (backward_features.dq) {
    const Weights<kPartM> none[kRowTiles] = {};
    store_part(ds, none);
  }
  if constexpr (backward_features.dq)
    __syncthreads();  // dS is whole
  else if constexpr (backward_features.dk || kLater)
    meet_sharers();
  if constexpr (kLayout.late_statistics) {
    const KeyTile x = tile_in_hand(work, p);
    copy_statistics(sm, p, x, step.next(p, x));
    copies_commit();
  }
  const auto dq = [&] {
    if constexpr (backward_features.dq) add_dq(p, sm, tile_in_hand(work, p), step);
  };
  if constexpr (!kLater) dq();
  if constexpr (kLater) stored_weights();
  if constexpr (backward_features.dk) multiply_stored<kLayout.qk_pitch>(ds, dk, step.q(sm));
  if constexpr (kLater) dq();
}

// Every warp of the CTA works on the tile of keys at `work`; `meanwhile` is called while the first copies are under
// way. A turn of the loop, in the order of time; with one stage, the copies of block i begin before the wait:
//
//   block i (rows of one query head)       | block i + 1
//   wait for Q, dO, LSE and D              |
//                                          | copy Q, dO, LSE and D
//   S^T, P^T; dV += P^T dO                 |
//   dP^T, dS^T to shared memory; dK += ... |
//   barrier: dS is whole                   |
//   dQ += dS K, added to global memory     |
//   the rest of dK += ..., of other warps  |
template <class Meanwhile>
DEV void attend(u32 sm, u32 work, const BackwardParams& p, const Meanwhile& meanwhile) {
  const auto tile = [&] { return tile_in_hand(work, p); };  // its registers are needed in between
  float dk[kRowTiles][kKSums], dv[kRowTiles][kVSums];
  clear(dk);
  clear(dv);
  SlopeSums slopes;
  if constexpr (backward_features.dslopes) slopes.open(p, tile());
  copy_keys(sm, p, tile());
  RowStep step = first_step(p, tile());
  if constexpr (kStages == 2) copy_queries(sm, p, tile(), step);
  if constexpr (kStages == 2 || kLayout.late_statistics) copy_statistics(sm, p, tile(), step);
  copies_commit();
  meanwhile();
#pragma unroll 1
  while (step.exists(p, tile())) {
    if constexpr (kStages == 1) {
      __syncthreads();  // all reads of the last step's blocks are done
      copy_queries(sm, p, tile(), step);
      if constexpr (!kLayout.late_statistics) copy_statistics(sm, p, tile(), step);
      copies_commit();
    }
    copies_wait<0>();
    __syncthreads();
    if constexpr (kStages == 2) {
      copy_queries(sm, p, tile(), step.next(p, tile()));
      if constexpr (!kLayout.late_statistics) copy_statistics(sm, p, tile(), step.next(p, tile()));
      copies_commit();
    }
    differentiate(p, sm, work, step, kRowParts > 1 || sees(p, tile(), step), dk, dv, slopes);
    const RowStep next = step.next(p, tile());
    if constexpr (backward_features.dslopes) slopes.flush(p, tile(), step, next);
    step = next;
  }
  copies_wait<0>();
  store_keys(p, tile(), dk, dv);
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
  if (warp() == 0) take(backward_features.deterministic ? draw() : blockIdx.x);
  for (;;) {
    __syncthreads();  // the next tile is known, and this tile's shared memory is free
    const KeyTile x = load_key_tile(next);
    if (x.key < 0) break;
    if (opaque_thread() == 0) store_tile(work, x);
    __syncthreads();
    attend(sm, work, p, take_next);
  }
  if (warp() == 0) tiles.reset();
}
