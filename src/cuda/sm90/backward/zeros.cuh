// Zeros for dQ's sums, which helpers write while the first products run. In the pre kernel they would hold up all
// products: 134 MB for 16k tokens of 16 heads of 128. The reducers do so until there is something to add, the warps
// that draw tiles whenever they would wait.
#pragma once
#include "cuda/device/pipeline.cuh"

#include "cuda/sm90/backward/tile.cuh"

namespace onepass::sm90 {

// Zeros for the next block of rows; false if all blocks are taken. By one warp.
DEV bool fill_next(const BackwardParams& p) {
  const i32 lane = static_cast<i32>(opaque_thread() % 32);
  u32 place = 0;
  if (lane == 0) place = atomicAdd(p.zeros, 1u);
  place = warp_uniform(place);
  if (place >= static_cast<u32>(p.heads * p.q_blocks)) return false;
  float* const sums = dq_sums_of(p, place) + 4 * lane;
#pragma unroll 8
  for (i32 i = 0; i < kBlockQ * backward_shape.sum_columns; i += 4 * 32) store_global(sums + i, {0u, 0u, 0u, 0u});
  __syncwarp();
  if (lane == 0) add_release(p.zeros + 1 + (place >> p.zero_shift), 1);
  return true;
}

// Until `done` is true or all blocks are taken. In front of each wait of these warps, so that a wait for zeros is one
// for a warp at work.
template <class Done>
DEV void fill_until(const BackwardParams& p, const Done& done) {
  while (config.zeroes && !warp_any(done()) && fill_next(p)) {
  }
}

// The groups of blocks whose zeros a thread has seen.
struct ZerosSeen {
  u32 groups = 0;  // a bit for each

  // Until the thread may add to the sums of a block.
  DEV void wait(const BackwardParams& p, i64 place) {
    const u32 group = static_cast<u32>(place) >> p.zero_shift;
    if (groups >> group & 1) return;
    const u32 blocks = min(1u << p.zero_shift, static_cast<u32>(p.heads * p.q_blocks) - (group << p.zero_shift));
    wait_for_count(p.zeros + 1 + group, blocks);
    async_proxy_fence_global();
    groups |= 1u << group;
  }
};

}  // namespace onepass::sm90
