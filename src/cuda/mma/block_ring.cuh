// The order in which blocks of K and V go through rings of stages in shared memory.
#pragma once
#include "cuda/device/copy_async.cuh"

namespace onepass::mma {

// Block n's copies begin when its slot is free and the step before it is under way: K, V, K, V ... each in a group of
// its own, so that 2 (stages - 1) groups are younger than the one that is waited for. Copies: load_k(n) and load_v(n)
// copy a block, if there is one, and end a group; `last` is the first block that is taken.
template <class Copies, i32 stages>
struct BlockRing : Copies {
  using Copies::last;
  using Copies::load_k;
  using Copies::load_v;

  DEV void begin() const {
    load_k(last);
#pragma unroll
    for (i32 i = 1; i < stages; ++i) {
      load_v(last - i + 1);
      load_k(last - i);
    }
  }
  // K of block n is here, and every warp is done with V of block n + 1.
  DEV void take_k(i32 n) const {
    copies_wait<2 * (stages - 1)>();
    __syncthreads();
    load_v(n - stages + 1);
  }
  // V of block n is here, and every warp is done with K of block n.
  DEV void take_v(i32 n) const {
    copies_wait<2 * (stages - 1)>();
    __syncthreads();
    load_k(n - stages);
  }
};

}  // namespace onepass::mma
