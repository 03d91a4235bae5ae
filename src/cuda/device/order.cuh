// Order through global memory, between kernels and between CTAs.
//
// Programmatic dependent launch (PTX ISA 8.x, griddepcontrol; sm_90): kernels of a call that start while the one before
// comes to its end. A kernel that is launched so touches no memory before wait_for_kernel_before().
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

// Until the kernel before has ended and all that it has written is there.
DEV void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start as CTAs of this one leave their multiprocessors, once all of them have said so.
DEV void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEV void memory_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Returns the old value. Acquire-release: earlier writes that this thread has seen are visible to later adders and,
// after a barrier, to their CTA.
DEV u32 add_in_order(u32* at, u32 x) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(x) : "memory");
  return before;
}
// An ordered reduction: CTA `number` adds to a sum once the counter *at is `number`, and then sets it to number + 1.
// One thread waits; it sees all that was written before pass_order(at, number).
DEV void wait_for_order(const unsigned* at, u32 number) {
  u32 now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now != number);
}
DEV void pass_order(unsigned* at, u32 number) {  // by one thread, after memory_fence and a barrier of those that wrote
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
}

}  // namespace onepass
