// Attention backward for Hopper where dK and dV of 64 keys fill the registers of one warpgroup each: heads up to 256
// wide, and narrower ones whose features take many registers. As backward.cuh, but the two consumer warpgroups share
// the products instead of the keys:
//
//   scores:     S^T = K Q^T     P = 2^(S - LSE), handed over     dV += P^T dO     its share of dQ of the block before
//   gradients:  dP^T = V dO^T   dS = P (dP - D), shared          dK += dS^T Q     the other share
//
// dQ goes from registers into the sums in global memory, 16 bytes a lane: staging it would take 64 KB of shared memory
// twice for each block. Pairs of blocks of threads (pair.cuh) have half as much of it, and stage it.
#pragma once
#include "cuda/sm90/backward/consumer/split_parts.cuh"
#include "cuda/sm90/backward/roles.cuh"

namespace onepass::sm90 {

// The same loop for both roles. first: their product of K or V with the rows; second: its sum over the rows.
template <u32 group>
DEV void consume_split(const SharedMemory& memory, const BackwardParams& p) {
  SplitConsumer<group> c(memory, p);
  while (c.next_tile()) {
    c.issue_first();
    wgmma_wait<0>();
    c.first_ready();
    if constexpr (kAhead) c.take_operand();
    for (;;) {  // nothing is under way
      const bool last = voted(c.at.last());
      c.wait_operands();
      c.separate();
      if constexpr (kAhead) {
        if (!last) {
          c.block_ahead();
          continue;
        }
      }
      c.issue_dq_before(c.block);  // of a tile's first block: idle
      c.issue_second(c.block);
      wgmma_wait<1>();
      c.dq_ready();
      c.next_block();
      if (kAhead || last) break;
      c.issue_first();
      wgmma_wait<1>();
      c.second_ready();
      wgmma_wait<0>();
      c.first_ready();
    }
    wgmma_wait<0>();
    c.second_ready();
    c.last_dq();
    c.store_tile();
  }
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
    if (group == 0)
      consume_split<0>(memory, p);
    else
      consume_split<1>(memory, p);
    run_fallback(memory, p);
  });
}
