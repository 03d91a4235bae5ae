// A stub for src/cuda/device/barrier.cuh.
#pragma once
#include "cuda/device/types.cuh"

#include "on_host/hopper.hpp"

namespace onepass {

DEV bool elect_one() { return threadIdx.x % 32 == (warps::backwards ? 31 : 0); }

DEV void mbar_init(u32 bar, u32 arrivals) {
  if (bar % 8 != 0) warps::fail("a barrier in shared memory is not aligned");
  if (!warps::hopper().memory_barriers.insert({bar, {arrivals, arrivals}}).second)
    warps::fail("two barriers in one place");
}
DEV void mbar_init_fence() {}
DEV void mbar_arrive(u32 bar) { warps::hopper().memory_barrier(bar).arrive(); }
DEV void mbar_arrive_expect(u32 bar, u32 bytes) {
  warps::MemoryBarrier& b = warps::hopper().memory_barrier(bar);
  b.bytes += bytes;
  b.arrive();
}
DEV void copies_arrive(u32 bar) {
  const auto land = [copies = std::move(warps::running->begun), bar] {
    for (const auto& copy : copies) copy();
    mbar_arrive(bar);
  };
  warps::running->begun.clear();
  if (warps::copies_are_early)
    land();
  else
    warps::background.push_back(land);
}
DEV bool mbar_try(u32 bar, u32 parity) { return warps::hopper().memory_barrier(bar).phase != parity; }
DEV void mbar_wait(u32 bar, u32 parity) {
  warps::wait_until([&b = warps::hopper().memory_barrier(bar), parity] { return b.phase != parity; });
}

DEV void bar_arrive(u32 id, u32 threads) { warps::hopper().named_barriers[id].arrive(threads); }
DEV void bar_sync(u32 id, u32 threads) {
  warps::NamedBarrier& b = warps::hopper().named_barriers[id];
  const u32 turn = b.arrive(threads);
  warps::wait_until([&] { return b.turns != turn; });
}

DEV bool bar_any(u32 id, u32 threads, bool own) {
  warps::NamedBarrier& b = warps::hopper().named_barriers[id];
  const u32 turn = b.arrive(threads, own);
  warps::wait_until([&] { return b.turns != turn; });
  return b.any[turn % 2];
}

DEV void wait_for_count(const u32* at, u32 least) {
  warps::wait_until([=] { return *static_cast<const volatile u32*>(at) >= least; });
}
DEV void add_release(u32* to, u32 by) {
  ++warps::steps;
  *to += by;
}

template <int N>
DEV void registers_down() {}
template <int N>
DEV void registers_up() {}
DEV void async_proxy_fence() {}
DEV void async_proxy_fence_global() {}

}  // namespace onepass
