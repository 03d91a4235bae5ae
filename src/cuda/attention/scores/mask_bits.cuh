// Packs a boolean mask into bits, tile by tile: a byte of the mask is read once, coalesced, instead of once by each
// lane that wants it, and tiles that hide everything or nothing are known before they are loaded.
#pragma once
#include "cuda/device/types.cuh"

#include "cuda/attention/scores/mask_bits.hpp"

namespace onepass {

// Rows and keys past the end are not seen.
DEV u32 fragment_word(const unsigned* bits, i64 row_stride, i32 rows, u32 first_bit, u32 lane) {
  u32 word = 0;
#pragma unroll
  for (i32 j = 0; j < 32; j += 4) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 row = j * 2 + static_cast<i32>(lane % 4) * 2 + i;
      if (row >= rows) continue;
      const u32 seen = bits[row * row_stride] >> (first_bit + lane / 4);
      word |= (seen & 1) << (j + i) | (seen >> 8 & 1) << (j + 2 + i);
    }
  }
  return word;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(256) pack_mask(const __grid_constant__ onepass::MaskPackParams p) {
  using namespace onepass;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, words = p.block_n / 32;
  for (i64 unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const i32 n = static_cast<i32>(unit % p.n_blocks);
    const i64 above = unit / p.n_blocks;
    const i32 m = static_cast<i32>(above % p.m_tiles);
    const i64 bh = above / p.m_tiles, b = bh / p.heads, h = bh - b * p.heads;
    const i32 rows = min(p.block_m, p.rows - m * p.block_m);
    bool any = false, all = true;
#pragma unroll 4
    for (i32 task = warp; task < rows * words; task += 8) {  // 32 keys of a row
      const i64 row = m * p.block_m + task / words;
      const i32 word = n * words + task % words, key = 32 * word + lane;
      const bool exists = key < p.keys;
      const bool seen =
          exists && p.mask[b * p.stride[0] + h * p.stride[1] + row * p.stride[2] + key * p.stride[3]] != 0;
      const u32 bits = __ballot_sync(0xffffffffu, seen);
      if (lane == 0) p.bits[b * p.bits_stride[0] + h * p.bits_stride[1] + row * p.bits_stride[2] + word] = bits;
      any = any || seen;
      all = all && (seen || !exists);
    }
    any = __syncthreads_or(any);
    all = __syncthreads_and(all);
    if (threadIdx.x == 0) {
      p.tiles[b * p.tile_stride[0] + h * p.tile_stride[1] + (m * p.block_m / 64) * p.tile_stride[2] + n * words] =
          !any  ? kAllMasked
          : all ? kNoneMasked
                : kSomeMasked;
    }
    if (p.fragments.words && threadIdx.x < 64) {  // the bits just written, of two times sixteen keys
      const u32* const bits =
          p.bits + b * p.bits_stride[0] + h * p.bits_stride[1] + m * p.block_m * p.bits_stride[2] + n;
      p.fragments.words[b * p.fragments.stride[0] + h * p.fragments.stride[1] + m * p.fragments.stride[2] + n * 64 +
                        threadIdx.x] =
          fragment_word(bits, p.bits_stride[2], p.bits_stride[2] == 0 ? 64 : rows, warp * 16, lane);
    }
  }
}
