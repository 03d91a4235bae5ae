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
#include "cuda/sm80/backward/differentiate.cuh"
#include "cuda/sm80/backward/epilogue.cuh"

namespace onepass::sm80 {

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
  constexpr bool kByKeys = kKeyParts > 1;  // a step copies what the next one reads
  if constexpr (kStages == 2 || kByKeys) copy_queries(sm, p, tile(), step);
  if constexpr (kStages == 2 || kByKeys || kLayout.late_statistics) copy_statistics(sm, p, tile(), step);
  copies_commit();
  HeldValues values;
  values.load(p, tile());
  meanwhile();
  if constexpr (kByKeys && kStages == 2) {
    copies_wait<0>();
    __syncthreads();
  }
#pragma unroll 1
  while (step.exists(p, tile())) {
    if constexpr (kStages == 1 && !kByKeys) {
      __syncthreads();  // all reads of the last step's blocks are done
      copy_queries(sm, p, tile(), step);
      if constexpr (!kLayout.late_statistics) copy_statistics(sm, p, tile(), step);
      copies_commit();
    }
    if constexpr (kStages == 1 || !kByKeys) {
      copies_wait<0>();
      __syncthreads();
    }
    if constexpr (kByKeys) {
      differentiate_by_keys(p, sm, work, step, values, dk, dv, slopes);
    } else {
      if constexpr (kStages == 2) {
        copy_queries(sm, p, tile(), step.next(p, tile()));
        if constexpr (!kLayout.late_statistics) copy_statistics(sm, p, tile(), step.next(p, tile()));
        copies_commit();
      }
      differentiate(p, sm, work, step, kRowParts > 1 || sees(p, tile(), step), values, dk, dv, slopes);
    }
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
