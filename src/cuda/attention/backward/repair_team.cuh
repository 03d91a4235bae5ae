// The warps of a CTA that repair the same sixteen keys, if few keys need it: each takes some of the rows that see them.
#pragma once
#include "cuda/attention/backward/backward.hpp"
#include "cuda/attention/fallback/products.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::fallback {

// warps = 1: a warp alone, and nothing is joined. memory: kRepairBytes of shared memory.
struct RepairTeam {
  u32 memory;
  i32 warp, warps;

  DEV i32 lane() const { return static_cast<i32>(opaque_thread() % 32); }
  DEV u32 word(i32 of_warp) const { return memory + static_cast<u32>(4 * of_warp); }
  DEV u32 sum(i32 element) const { return memory + static_cast<u32>(128 + 4 * (element * 32 + lane())); }

  // f(x) for a number of each warp. Two barriers.
  template <class F>
  DEV void each_word(u32 own, const F& f) const {
    if (lane() == 0) store_word(word(warp), static_cast<i32>(own));
    __syncthreads();
#pragma unroll 1
    for (i32 i = 0; i < warps; ++i) f(static_cast<u32>(load_word(word(i))));
    __syncthreads();
  }

  // Joins the findings of all warps.
  DEV void tell(u32& flags, u32& right, bool& skipped) const {
    if (warps == 1) return;
    static_assert(kRepairBytes >= 128 + 3 * 8 * 128);
    store_word(sum(3 * warp), static_cast<i32>(flags)), store_word(sum(3 * warp + 1), static_cast<i32>(right));
    store_word(sum(3 * warp + 2), skipped);
    __syncthreads();
#pragma unroll 1
    for (i32 i = 0; i < warps; ++i) {
      flags |= static_cast<u32>(load_word(sum(3 * i)));
      right |= static_cast<u32>(load_word(sum(3 * i + 1)));
      skipped = skipped || load_word(sum(3 * i + 2)) != 0;
    }
    __syncthreads();
  }
  // The warps' sums, in the order of the warps. unit: the largest of them.
  DEV void join(Output& o, float& unit) const {
    if (warps == 1) return;
    constexpr i32 kUnit = 32;
    static_assert(kRepairBytes >= 128 + 33 * 128);
#pragma unroll 1
    for (i32 turn = 0; turn <= warps; ++turn) {  // at last all read
      if (turn == warps || (turn == warp && turn > 0)) {
        const float other = load_one(sum(kUnit)), most = fmaxf(unit, other);
        const bool last = turn == warps;
        const float by_own = last ? 0.0f : unit / most, by_other = last ? 1.0f : other / most;
#pragma unroll
        for (i32 e = 0; e < 32; ++e) {
          const float joined = load_one(sum(e));
          o[e] = last ? joined : o[e] * by_own + joined * by_other;
        }
        unit = last ? other : most;
      }
      if (turn == warp) {
#pragma unroll
        for (i32 e = 0; e < 32; ++e) store_word(sum(e), __float_as_int(o[e]));
        store_word(sum(kUnit), __float_as_int(unit));
      }
      __syncthreads();
    }
  }
};

}  // namespace onepass::fallback
