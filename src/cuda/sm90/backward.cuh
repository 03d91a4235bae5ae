// Attention backward for Hopper: dQ, dK and dV from Q, K, V, dO, the rows' log-sum-exp and D = rowsum(dO * O).
//
// A block of threads is one warpgroup of helpers and two consumer warpgroups of 64 keys each. It is persistent: it draws
// tiles of 128 keys of a head of K and V; the rows that see them pass by in blocks, head by head of those that share
// the keys. A consumer's work on a block:
//
//   S^T = K Q^T, dP^T = V dO^T      wgmma; both operands from shared memory
//   P = 2^(S - LSE), dS = P (dP - D)  in registers; dS also into shared memory, for both warpgroups' dQ
//   dQ = dS K                       of the block BEFORE, whose dS both have written by now; a share each
//   dV += P^T dO, dK += dS^T Q      P and dS from registers
//
// dQ is summed in fp32 in global memory, in the order of the accumulators: a helper adds it by bulk reductions.
// The loop runs flat over the blocks of all tiles, and the next block's S is queued behind dV and dK. README.md has the
// schedule in steps, the budgets and what each trick gave.
#pragma once
#include "cuda/sm90/backward_consumer.cuh"
#include "cuda/sm90/backward_producer.cuh"

namespace onepass::sm90 {

// ------------------------------------------------------------------------------------------------------------ consumer
DEV void consume(const SharedMemory& memory, u32 group, const BackwardParams& p) {
  BackwardConsumer c(memory, group, p);
  if (!c.next_tile()) return;
  c.issue_scores();
  c.probabilities();
  for (;;) {
    const bool last = voted(c.at.last());  // of its tile
    if (last) c.arrive(memory.v().at(c.tiles).empty());
    c.wait_ds();
    c.gradients();
    c.issue_gradients();
    c.has_q = memory.q().at(c.block + 1).has_come();  // the answers are needed later
    c.has_dout = memory.dout().at(c.block + 1).has_come();
    const bool stage_is_free = memory.dq(group).at(c.block - 1).may_acquire();
    wgmma_wait<2>();
    c.dq_ready(stage_is_free);
    ++c.block;
    c.at.next();
    c.accumulate = 1;
    c.fresh = false;
    if (last) {
      wgmma_wait<0>();
      c.gradients_ready();
      c.release_rows(c.block - 1);
      c.store_tile();
      ++c.tiles;
      if (!c.next_tile()) break;
    }
    c.issue_scores();
    wgmma_wait<1>();
    c.gradients_ready();
    if (!last) c.release_rows(c.block - 1);
    c.probabilities();
  }
  memory.ds().at(c.block - 1).wait();  // the last block's dQ
  async_proxy_fence();
  c.odd_block = voted(c.block & 1);
  c.odd_tile = voted(c.tiles & 1);
  wgmma_fence();
  c.issue_dq_before();
  wgmma_wait<0>();
  fence_operand(c.dq);
  memory.dq(group).at(c.block - 1).acquire();
  c.stage_dq();
}

}  // namespace onepass::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm90::kGroupThreads*(onepass::sm90::kGroups + 1), 1)
    attention_backward(const __grid_constant__ onepass::TensorMap q, const __grid_constant__ onepass::TensorMap k,
                       const __grid_constant__ onepass::TensorMap v, const __grid_constant__ onepass::TensorMap dout,
                       const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using namespace onepass::sm90;
  extern __shared__ __align__(1024) unsigned char smem[];
  const SharedMemory memory{shared_address(smem)};
  const u32 group = warp_uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) {
    if (memory.base & 1023) __trap();  // the swizzle pattern is a function of the address
    memory.k().init(kConsumerWarps + kGroups);
    memory.v().init(kConsumerWarps);
    memory.q().init(kConsumerWarps);
    memory.dout().init(kConsumerWarps);
    memory.ds().init(kConsumerWarps, kConsumerWarps);
    memory.dq(0).init(1, kGroupWarps);
    mbar_init_fence();
    tma_prefetch(&q);
    tma_prefetch(&k);
    tma_prefetch(&v);
    tma_prefetch(&dout);
  }
  __syncthreads();
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    const u32 helper = warp_uniform(threadIdx.x / 32);
    if (helper == 0)
      produce(memory, {&q, &k, &v, &dout}, p);
    else if (helper <= kGroups && elect_one())
      reduce(memory, helper - 1, p);
  } else {
    registers_up<config.consumer_registers>();
    consume(memory, group - 1, p);
  }
}
