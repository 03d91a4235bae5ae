// mbarriers, named barriers, register budgets, and the fences between them (PTX ISA 8.x, sections 9.7.12-13).
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

DEV bool elect_one() {  // one lane of a converged warp
  u32 pred;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(pred));
  return pred != 0;
}

// A phase ends when the pending arrivals and the pending bytes are both zero. wait(parity) returns once the phase of
// that parity has ended. A fresh barrier is in phase 0, so wait(1) falls through: producers start with parity 1 ("the
// slot is free"), consumers with 0 ("the data has come").
DEV void mbar_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
DEV void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void mbar_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEV void mbar_arrive_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Arrives when all copies that this thread has begun by cp.async are done. cp.async does not use the async proxy, so a
// thread that waits and lets wgmma read the data needs a fence.
DEV void copies_arrive(u32 bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
DEV bool mbar_try(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok)
               : "r"(bar), "r"(parity)
               : "memory");
  return ok != 0;
}
DEV void mbar_wait(u32 bar, u32 parity) {
  while (!mbar_try(bar, parity)) {
  }
}

DEV void bar_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// The same; tells whether any of the threads brings true.
DEV bool bar_any(u32 id, u32 threads, bool own) {
  u32 any;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(static_cast<u32>(own)), "r"(id), "r"(threads)
               : "memory");
  return any != 0;
}
DEV void bar_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Counters in global memory, between CTAs: what was written before add_release is seen behind the wait.
DEV void wait_for_count(const u32* at, u32 least) {
  u32 x;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  while (x < least);
}
DEV void add_release(u32* to, u32 by) {
  asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(by) : "memory");
}

template <int N>
DEV void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEV void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Orders this thread's plain stores to shared memory before later reads by TMA or wgmma (the async proxy).
DEV void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for global memory.
DEV void async_proxy_fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace onepass
