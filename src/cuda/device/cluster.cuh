// Two CTAs of a cluster, on neighbouring multiprocessors: each reaches the other's shared memory
// (sm_90; PTX ISA 8.x: mapa, mbarrier and cp.async.bulk with shared::cluster, st.async).
#pragma once
#include "cuda/device/barrier.cuh"

namespace onepass {

constexpr u32 kPair = 2;  // blocks of a cluster

DEV u32 pair_rank() {  // 0 or 1
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of both blocks: what was written before is there behind it.
DEV void pair_sync() { asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory"); }
// The other block's place for this address; only for the functions below.
DEV u32 of_partner(u32 address) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(pair_rank() ^ 1));
  return there;
}
// Says that what this thread has read may be written again. Of what it has written it says nothing to the other block:
// a release at the cluster's scope is a MEMBAR.GPU (SASS), which waits for products under way, too.
DEV void mbar_arrive_there(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Both end by their bytes' arrival at a barrier of the other block's.
DEV void bulk_copy_there(u32 to, u32 from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(bar)
               : "memory");
}
DEV void store_word_there(u32 to, i32 x, u32 bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x), "r"(bar)
               : "memory");
}

}  // namespace onepass
