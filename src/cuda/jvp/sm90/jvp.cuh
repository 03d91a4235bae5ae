// Forward mode for Hopper: attention and its derivative along tangents, by wgmma and TMA.
//
// A CTA is one producer warpgroup (one warp of it issues TMA) and `groups` consumer warpgroups of 64 query rows each.
// It is persistent: it draws (head, query tile) pairs from a counter, longest first. A consumer's work on a block of
// keys:
//
//   S = Q K^T, dS = tQ K^T + Q tK^T    both operands from shared memory; fp32 sums in registers
//   P = 2^(S - m), X = P dS            lazy online softmax; the fragments are the A operands of the next products
//   O += P V, tO += X V + P tV         V from shared memory, read transposed
//   tO / l - mu O                      the end: mu = sum X / l is the derivative of the LSE
//
// A warpgroup waits for each of its products: S, dS, O and tO leave registers for no second block. The other
// warpgroup's products run meanwhile. The README of cuda/jvp has the budgets.
#pragma once
#include "cuda/jvp/sm90/consumer.cuh"
#include "cuda/jvp/sm90/producer.cuh"

namespace onepass::cuda::jvp::sm90 {

DEV void consume(const SharedMemory& memory, u32 group, const Maps& maps, const JvpParams& p) {
  Consumer c(memory, group, maps, p);
  c.begin_turns();
  for (WorkTile tile = c.take_tile(); tile.exists(); tile = c.take_tile()) {
    c.open(tile);
    for (i32 n = tile.n_hi; n > tile.n_lo;) {
      n = n == tile.n_hi ? n - 1 : next_block<kKeys>(p, tile, n);
      const bool seen = c.sees(tile, n);
      c.take_turn();
      if (seen) {
        c.k.wait();
        c.block_scores();
        c.end_turn();
        const BeforeScores known = c.before(n);
        c.scores_ready();
        if (n == tile.n_lo) c.done_with_query();
        c.softmax(n, known);
        c.v.wait();
        c.block_sums();
        c.sums_ready();
      } else {
        c.end_turn();
        if (n == tile.n_lo) c.done_with_query();
        c.pass_block();
      }
    }
    c.store();
  }
  if (c.lane == 0) tma_store_wait();  // shared memory must outlive the last store
}

}  // namespace onepass::cuda::jvp::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::cuda::jvp::sm90::config.threads(), 1)
    attention_jvp(const __grid_constant__ onepass::cuda::jvp::sm90::Maps maps,
                  const __grid_constant__ onepass::JvpParams p) {
  using namespace onepass;
  using namespace onepass::cuda::jvp::sm90;
  extern __shared__ __align__(1024) unsigned char smem[];
  const SharedMemory memory{shared_address(smem)};
  const u32 group = warp_uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) {
    if (memory.base & 1023) __trap();  // the swizzle pattern is a function of the address
    memory.q().init(kGroupWarps * kGroups);
    memory.k().init(kGroupWarps * kGroups);
    memory.v().init(kGroupWarps * kGroups);
    mbar_init_fence();
  }
  __syncthreads();
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    if (warp_uniform(threadIdx.x / 32) == 0) produce(memory, maps, p);
  } else {
    registers_up<config.consumer_registers>();
    consume(memory, group - 1, maps, p);
  }
}
