// Attention backward for Hopper where dK and dV of 64 keys fill the registers of one warpgroup each: heads up to 256
// wide, and narrower ones whose features take many registers. As backward.cuh, but the two consumer warpgroups share
// the products instead of the keys:
//
//   scores:     S^T = K Q^T     P = 2^(S - LSE), handed over     dV += P^T dO     its share of dQ of the block before
//   gradients:  dP^T = V dO^T   dS = P (dP - D), shared          dK += dS^T Q     the other share
//
// dQ goes from registers into the sums in global memory, 16 bytes a lane: staging it would take 64 KB of shared memory
// twice for each block. Pairs of CTAs (pair.cuh) have half as much of it, and stage it.
#pragma once
#include "cuda/sm90/backward/consumer/split_parts.cuh"
#include "cuda/sm90/backward/roles.cuh"

namespace onepass::sm90 {

// Both roles run the same loops. first: the role's product of K or V with the rows; second: its sum over the rows;
// operand: P or dS. A turn of a loop, in the order of time, without registers for two blocks:
//
//   block i - 1      | block i                        | block i + 1
//   wait for dS      |                                |
//   issue dQ = dS K  | issue second                   |
//   dQ ready: add it |    |                           | issue first
//                    | second ready                   |
//                    |                                | first ready; operand
template <u32 group>
DEV void run_blocks(SplitConsumer<group>& c) {
  for (;;) {  // nothing is under way
    const bool last = warp_any(c.at.last());
    c.wait_operands();
    c.separate();
    c.issue_dq_before(c.block);  // idle in a tile's first block
    c.issue_second(c.block);
    wgmma_wait<1>();
    c.dq_ready();
    c.next_block();
    if (last) break;
    c.issue_first();
    wgmma_wait<1>();
    c.second_ready();
    wgmma_wait<0>();
    c.first_ready();
  }
}
// The same where there are registers: the first product of a block is a block ahead, so that its exponentials run under
// the other products.
//
//   block i - 1      | block i                        | block i + 1
//   wait for dS      |                                | issue first
//   issue dQ = dS K  | issue second                   |
//      |             |    |                           | first ready: P or dS
//   add dQ           | second ready                   |
//                    |                                | operand
template <u32 group>
DEV void run_blocks_ahead(SplitConsumer<group>& c) {
  c.take_operand();
  for (;;) {  // nothing is under way
    const bool last = warp_any(c.at.last());
    c.wait_operands();
    c.separate();
    if (last) break;
    c.keep_place();
    c.next_block();
    c.issue_first();
    c.issue_dq_before(c.block - 1);
    c.issue_second(c.block - 1);
    wgmma_wait<2>();
    c.first_ready();
    c.add_dq_before(c.block - 2);
    wgmma_wait<0>();
    c.second_ready();
    c.take_operand();
  }
  c.issue_dq_before(c.block);
  c.issue_second(c.block);
  wgmma_wait<1>();
  c.dq_ready();
  c.next_block();
}

template <u32 group>
DEV void consume_split(const SharedMemory& memory, const BackwardParams& p) {
  SplitConsumer<group> c(memory, p);
  while (c.next_tile()) {
    c.issue_first();
    wgmma_wait<0>();
    c.first_ready();
    if constexpr (kAhead)
      run_blocks_ahead(c);
    else
      run_blocks(c);
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
  });
}
