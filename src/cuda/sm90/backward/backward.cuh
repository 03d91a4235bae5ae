// Attention backward for Hopper: dQ, dK and dV from Q, K, V, dO, the rows' log-sum-exp and D = rowsum(dO * O). Heads up
// to 128 wide; wider ones, and those whose features take many registers: split.cuh.
//
// A CTA is one warpgroup of helpers and two consumer warpgroups of 64 keys each. It is persistent: it
// draws tiles of 128 keys of a head of K and V; the rows that see them pass by in blocks, of each the query heads
// that share the keys. A consumer's work on a block:
//
//   S^T = K Q^T, dP^T = V dO^T        wgmma; both operands from shared memory
//   P = 2^(S - LSE), dS = P (dP - D)  in registers; dS also into shared memory, for both warpgroups' dQ
//   dQ = dS K                         of the block BEFORE, whose dS both have written by now; a share each
//   dV += P^T dO, dK += dS^T Q        P and dS from registers
//
// dQ is summed in fp32 in global memory, in the order of the accumulators, by bulk reductions of a helper each; a last
// kernel converts it (attention/backward/post.cuh). README.md has the schedule in steps and the budgets.
#pragma once
#include "cuda/sm90/backward/consumer/joint.cuh"
#include "cuda/sm90/backward/roles.cuh"

namespace onepass::sm90 {

// The loop runs flat over the blocks of all tiles. A turn, in the order of time; it begins when S and dP of block i are
// in registers and no product is under way:
//
//   block i - 1              | block i                        | block i + 1
//   wait for dS of both      |                                |
//                            | dS into shared memory          |
//   issue dQ = dS K          |                                |
//      |                     | issue dV += P^T dO, dK += dS^T Q |
//   dQ ready; to the helpers |    |                           |
//                            |    |                           | issue S^T = K Q^T
//                            | dV and dK ready                |
//                            |                                | issue dP^T = V dO^T; P under it
//
// At the end of a tile dV and dK are awaited and stored before block i + 1, which is the next tile's, begins.
template <u32 columns>
DEV void consume_tiles(JointConsumer<columns>& c, const SharedMemory& memory, u32 group, const BackwardParams& p) {
  c.issue_scores();
  c.draw_dropout();
  c.probabilities();
  for (;;) {
    const bool last = warp_any(c.at.last());  // of its tile
    if (last) c.arrive(memory.v().at(c.tiles).empty());
    c.wait_ds();
    c.gradients();
    c.separate();
    c.issue_gradients();
    c.has_q = memory.q().at(c.block + 1).try_wait();  // the answers are needed later
    c.has_dout = memory.dout().at(c.block + 1).try_wait();
    const bool stage_is_free = c.dq_stage_is_free();
    wgmma_wait<2>();
    c.dq_ready(stage_is_free);
    c.next_block();
    c.accumulate = 1;
    if (last) {
      wgmma_wait<0>();
      c.gradients_ready();
      c.release_rows(c.block - 1);
      c.store_tile();
      ++c.tiles;
      if (!c.next_tile()) break;
    }
    c.issue_scores();
    c.draw_dropout();
    wgmma_wait<1>();
    c.gradients_ready();
    if (!last) c.release_rows(c.block - 1);
    c.probabilities();
  }
  memory.ds().at(c.block - 1).wait();  // the last block's dQ
  async_proxy_fence();
  c.odd_block = warp_any(c.block & 1);
  c.odd_tile = warp_any(c.tiles & 1);
  wgmma_fence();
  c.issue_dq_before();
  wgmma_wait<0>();
  fence_operand(c.dq);
  c.acquire_dq_stage(true);
  c.stage_dq();
}
template <u32 columns>
DEV void consume_jointly(const SharedMemory& memory, u32 group, const BackwardParams& p) {
  JointConsumer<columns> c(memory, group, p);
  if (c.next_tile()) consume_tiles(c, memory, group, p);
}

}  // namespace onepass::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm90::kThreads, 1)
    attention_backward(const __grid_constant__ onepass::TensorMap q, const __grid_constant__ onepass::TensorMap k,
                       const __grid_constant__ onepass::TensorMap v, const __grid_constant__ onepass::TensorMap dout,
                       const __grid_constant__ onepass::TensorMap bias,
                       const __grid_constant__ onepass::TensorMap dbias,
                       const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using namespace onepass::sm90;
  extern __shared__ __align__(1024) unsigned char smem[];
  const SharedMemory memory{shared_address(smem)};
  run_roles(memory, {&q, &k, &v, &dout, &bias, &dbias}, p, [&](u32 group) {
    if (kDqN<0> == kDqN<1> || group == 0)
      consume_jointly<kDqN<0>>(memory, group, p);
    else
      consume_jointly<kDqN<1>>(memory, group, p);
  });
}
