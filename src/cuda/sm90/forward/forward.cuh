// Attention forward for Hopper: O = softmax(scores) V and its row log-sum-exp; 16-bit inputs, fp32 in between.
//
// A CTA is one producer warpgroup (one warp of it issues TMA) and `groups` consumer warpgroups of 64 query
// rows. It is persistent: it draws (head, query tile) pairs from a counter, longest first. A consumer's work on a block
// of keys:
//
//   S = Q K^T           wgmma; Q from registers or shared memory, K from shared memory, fp32 S in registers
//   P = 2^(S - m)       lazy online softmax in registers; S's accumulator layout is the A-operand layout of P V
//   O += P V            wgmma; P from registers, V from shared memory read transposed (MN-major)
//
// Overlaps that keep the tensor cores fed: S of block n - 1 is issued ahead of P V of block n, so one turn carries two
// products; `cross_tile`: the same across tiles; `ping_pong`: the warpgroups take turns at issuing.
// README.md has the schedule in steps, the budgets and what each trick gave.
#pragma once
#include "cuda/sm90/forward/consumer.cuh"
#include "cuda/sm90/forward/producer.cuh"
#include "cuda/sm90/fp8/convert.cuh"
#include "cuda/sm90/fp8/transpose.cuh"

namespace onepass::sm90 {

// ------------------------------------------------------------------------------------------------------------ consumer
// A turn of the inner loop, in the order of time. It begins when P of block i - 1 is in registers:
//
//   block i - 1    | block i                | block i + 1
//                  | issue S = Q K^T        |
//   issue O += P V |                        |
//      |           | S ready; bias and mask |
//   O ready        |                        |
//                  |                        | ask whether K and V have come
//                  | softmax: P             |
DEV void consume(const SharedMemory& memory, u32 group, const TensorMap* out, const ForwardParams& p) {
  Consumer c(memory, group, out, p);
  c.scheduler_barrier_init();
  WorkTile tile = c.take_tile();
  if (config.cross_tile && tile.exists()) c.first_block(tile);
  while (tile.exists()) {
    if (!config.cross_tile) c.first_block(tile);
    c.k.test_wait();
    c.v.test_wait();
    for (i32 n = tile.n_hi - 1; n > tile.n_lo;) {
      n = next_block<kKeys>(p, tile, n);
      c.k.wait_tested();
      if constexpr (!kLateValues) c.v.wait_tested();
      c.issue();  // S of block n, then P V of the block before it
      const BeforeScores known = c.before(n);
      c.scores_ready<1>();
      c.apply(n, known);
      const bool fits = c.see();
      c.output_ready();
      c.softmax(n, fits);
    }
    c.done_with_query();
    tile = config.cross_tile ? c.overlapped_border(tile) : c.plain_border(tile);
  }
  if (c.lane == 0) tma_store_wait();  // shared memory must outlive the last store
  __syncwarp();
  constexpr i32 kWarps = kGroups * kGroupWarps;
  const i32 warp = static_cast<i32>(opaque_thread() - kGroupThreads) / 32;
  using Room = fallback::RoomFor<config.consumer_registers>;
  run_fallback<true, 16, kWarps>(p, c.fallback,
                                 fallback::Team<kWarps, kSchedulerBarrier + kGroups, Room>{memory.base, warp});
}

}  // namespace onepass::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm90::kGroupThreads*(onepass::sm90::kGroups + 1), 1)
    attention_forward(const __grid_constant__ onepass::TensorMap q, const __grid_constant__ onepass::TensorMap k,
                      const __grid_constant__ onepass::TensorMap v, const __grid_constant__ onepass::TensorMap out,
                      const __grid_constant__ onepass::TensorMap bias,
                      const __grid_constant__ onepass::EntropyParams p) {
  using namespace onepass;
  using namespace onepass::sm90;
  extern __shared__ __align__(1024) unsigned char smem[];
  const SharedMemory memory{shared_address(smem)};
  const u32 group = warp_uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) {
    if (memory.base & 1023) __trap();  // the swizzle pattern is a function of the address
    memory.q().init(kGroupWarps * kGroups);
    memory.k().init(kGroupWarps * kGroups, kFp8Keys ? kHelpers : 0);
    memory.v().init(kGroupWarps * kGroups, kFactors ? kHelpers : 0);
    if constexpr (kFactors) memory.incoming().init(kHelpers);
    memory.bias(0).init(kGroupWarps);
    mbar_init_fence();
    tma_prefetch(&q);
    tma_prefetch(&k);
    tma_prefetch(&v);
    tma_prefetch(&out);
  }
  __syncthreads();
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    const u32 warp = warp_uniform(threadIdx.x / 32);
    if (warp == 0) produce(memory, {&q, &k, &v, &bias}, p);
    if constexpr (kFp8) {
      if (warp != 0) transpose(memory, warp - 1);
    } else if constexpr (kFp8Keys) {
      if (warp != 0) convert(memory, warp - 1);
    }
  } else {
    registers_up<config.consumer_registers>();
    consume(memory, group - 1, &out, p);
  }
}
