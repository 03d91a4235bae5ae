// V of a warp's keys as left fragments, in registers all along.
#pragma once
#include "cuda/sm80/backward/copy.cuh"

namespace onepass::sm80 {

// Columns 16 k .. 16 k + 15 of `tiles` times sixteen keys.
template <i32 tiles>
struct HeldFragments {
  u32 of[4 * tiles];
};
static_assert(!config.held || (features.dim_v % 2 == 0 && config.copy_bytes >= 4));
struct HeldValues {
  static constexpr i32 kSteps = config.held ? kOutN / 16 : 1;
  HeldFragments<kScoreTiles> of[kSteps];

  // Words of two elements from global memory: the lanes of eight keys and four columns' pairs.
  DEV void load(const BackwardParams& p, const KeyTile& x) {
    if constexpr (!config.held) return;
    const u32 lane = opaque_thread() % 32;
    const char* const from = token_0(p.v, p.v_stride, x, x.head, x.k_begin);
#pragma unroll
    for (i32 i = 0; i < 2 * kScoreTiles; ++i) {
      const i32 key = x.key + static_cast<i32>(own_score_keys() + lane / 4) + 8 * i;
      const char* const row = from + key * p.v_stride[2] * kElementBytes;
#pragma unroll
      for (i32 k = 0; k < kSteps; ++k) {
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          const i32 d = 16 * k + 8 * e + static_cast<i32>(lane % 4) * 2;
          const bool real = key < x.seq_k && (features.dim_v % 16 == 0 || d < features.dim_v);
          u32 word = 0;
          if (real) word = *reinterpret_cast<const u32*>(row + d * kElementBytes);
          of[k].of[4 * (i / 2) + i % 2 + 2 * e] = word;
        }
      }
    }
  }
  static DEV u32 address() { return 0; }
  DEV const HeldFragments<kScoreTiles>& operator()(u32, i32 k) const { return of[k]; }
};

}  // namespace onepass::sm80
