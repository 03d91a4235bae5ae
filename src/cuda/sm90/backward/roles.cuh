// A CTA: barriers, and its roles; consume(group) is what a consumer warpgroup does.
#pragma once
#include "cuda/device/order.cuh"

#include "cuda/sm90/backward/reducer.cuh"
#include "cuda/sm90/backward/schedule.cuh"

namespace onepass::sm90 {

constexpr u32 kThreads = kGroupThreads * (kGroups + 1);

// Which of two kernels computes the call, as the pre kernel has found; the other leaves at once.
DEV bool is_its_turn(const BackwardParams& p) {
  if constexpr (!config.guarded) return true;
  return (*static_cast<const volatile u64*>(&p.notes->careful_call) == p.call) == config.careful;
}

template <class Consume>
DEV void run_roles(const SharedMemory& memory, const Maps& maps, const BackwardParams& p, const Consume& consume) {
  const u32 group = warp_uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) {
    if (memory.base & 1023) __trap();  // the swizzle pattern is a function of the address
    memory.schedule().init(1);
    memory.k().init(kConsumerWarps + (config.split && !kPaired ? kDeterministic : kGroups));
    memory.v().init(config.split ? kGroupWarps : kConsumerWarps);
    memory.q().init(kConsumerWarps);
    memory.dout().init(kConsumerWarps);
    memory.ds().init(kPaired ? kPair * kConsumerWarps : kConsumerWarps, config.split ? kGroupWarps : kConsumerWarps);
    memory.dq(0).init(1, kGroupWarps);
    memory.order().init(config.split ? kConsumerWarps : 1, config.split ? 0 : kConsumerWarps);
    memory.exchange(0).init(1, 1);
    memory.bias().init(1);
    if constexpr (kPaired) {
      memory.partner().init(1);
      memory.drawn().init(1);
    }
    mbar_init_fence();
    tma_prefetch(maps.q);
    tma_prefetch(maps.k);
    tma_prefetch(maps.v);
    tma_prefetch(maps.dout);
  }
  if constexpr (config.careful) let_next_kernel_start();  // which waits for this one's end, soon as it leaves
  wait_for_kernel_before();
  if constexpr (!config.careful) let_next_kernel_start();
  if (!is_its_turn(p)) return;
  if constexpr (kPaired)
    pair_sync();
  else
    __syncthreads();
  if (config.careful && blockIdx.x == 0 && threadIdx.x == 0) atomicOr(&p.notes->found, static_cast<u32>(kTookCare));
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<kHelperRegisters>();
    const u32 helper = warp_uniform(threadIdx.x / 32);
    if (helper == 0)
      produce(memory, maps, p);
    else if (helper == 3)
      schedule(memory, p);
    else if (config.split && kDeterministic && helper == 1)
      keep_order(memory, p);
    else if constexpr (kPaired)
      helper == 1 ? send_ds(memory, p) : add_paired_dq(memory, p);
    else if (!config.split && kDeterministic)
      reduce_in_order(memory, helper - 1, p);
    else if (!config.split)
      reduce(memory, helper - 1, maps, p);
  } else {
    registers_up<kConsumerRegisters>();
    consume(group - 1);
  }
  if constexpr (kPaired) pair_sync();  // what one sends the other must find it there
}

}  // namespace onepass::sm90
