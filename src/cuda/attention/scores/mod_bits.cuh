// Packs a mask_mod, with a boolean mask beside it, into bits, fragments and states of tiles (mask_bits.hpp), so that
// every kernel reads it as a boolean mask. Interval arithmetic tells tiles of 32 keys that are hidden or visible as a
// whole (user::mask_bounds); the mask is evaluated in the others alone.
//
// A warp has a strip: the rows of a tile, and 32 words of 32 keys each, or as many as are whole blocks.
#pragma once
#include "cuda/attention/scores/mask_bits.cuh"
#include "cuda/attention/scores/mod_bits.hpp"
#include "cuda/device/math.cuh"

namespace onepass {

struct ModStrip {
  const ModPackParams& q;
  const MaskPackParams& p = q.pack;
  const i32 lane = threadIdx.x % 32;
  i64 b, h;
  i32 first_row, rows, word;  // word: of this lane
  u32 exists;                 // which of the lane's keys do

  DEV u32* bits_at(i32 row) const {
    return p.bits + b * p.bits_stride[0] + h * p.bits_stride[1] + (first_row + row) * p.bits_stride[2];
  }
  DEV MaskTile by_bounds() const {
    if (exists == 0) return kAllMasked;
    const i32 key = 32 * word;
    const interval::Bounds seen =
        user::mask_bounds(interval::just(static_cast<double>(b)), interval::just(static_cast<double>(h)),
                          interval::between(first_row, first_row + rows - 1),
                          interval::between(key, min(key + 31, p.keys - 1)), q.buffers);
    return interval::is_true(seen) ? kNoneMasked : interval::is_false(seen) ? kAllMasked : kSomeMasked;
  }
  // The elements of word `of`, by the whole warp. by_mod: whether the mask_mod hides any.
  DEV MaskTile evaluated(i32 of, bool by_mod) const {
    const i32 key = 32 * of + lane;
    const bool in = key < p.keys;
    bool any = false, all = true;
#pragma unroll 2
    for (i32 r = 0; r < rows; ++r) {
      const i32 row = first_row + r;
      bool seen = in;
      if (by_mod) seen = seen && user::mask_mod(static_cast<i32>(b), static_cast<i32>(h), row, key, q.buffers);
      if constexpr (kReadsMask)
        seen = seen && p.mask[b * p.stride[0] + h * p.stride[1] + row * p.stride[2] + key * p.stride[3]] != 0;
      const u32 bits = __ballot_sync(0xffffffffu, seen);
      if (lane == 0) bits_at(r)[of] = bits;
      any = any || bits != 0;
      all = all && __ballot_sync(0xffffffffu, seen || !in) == 0xffffffffu;
    }
    return !any ? kAllMasked : all ? kNoneMasked : kSomeMasked;
  }
  // The fragments of the tile of word `of`, of which the bits are written.
  DEV void write_fragments(i32 of, MaskTile state, u32 keys) const {
#pragma unroll
    for (u32 part = 0; part < 2; ++part) {  // sixteen keys
      const u32 word = state == kAllMasked ? 0
                       : state == kNoneMasked && rows == 64 && keys == ~0u
                           ? ~0u
                           : fragment_word(bits_at(0) + of, p.bits_stride[2], rows, part * 16, lane);
      p.fragments.words[b * p.fragments.stride[0] + h * p.fragments.stride[1] + first_row / 64 * p.fragments.stride[2] +
                        of * 64 + part * 32 + lane] = word;
    }
  }
};

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(256) pack_mod(const __grid_constant__ onepass::ModPackParams q) {
  using namespace onepass;
  const MaskPackParams& p = q.pack;
  const i32 lane = threadIdx.x % 32, block_words = p.block_n / 32, strip = 32 / block_words * block_words,
            words = p.n_blocks * block_words, strips = (words + strip - 1) / strip;
  for (i64 unit = blockIdx.x * 8 + threadIdx.x / 32; unit < p.units; unit += gridDim.x * 8) {
    const i32 s = static_cast<i32>(unit % strips);
    const i64 above = unit / strips;
    const i32 m = static_cast<i32>(above % p.m_tiles);
    const i64 bh = above / p.m_tiles, b = bh / p.heads;
    const i32 row = m * p.block_m, word = s * strip + lane, left = p.keys - 32 * word;
    const bool in = lane < strip && word < words;
    const ModStrip x{q,
                     p,
                     lane,
                     b,
                     bh - b * p.heads,
                     row,
                     min(p.block_m, p.rows - row),
                     word,
                     !in || left <= 0 ? 0
                     : left >= 32     ? ~0u
                                      : (1u << left) - 1};
    MaskTile state = x.by_bounds();
    const bool by_mod = state == kSomeMasked, open = by_mod || (kReadsMask && state == kNoneMasked);
    if (in && !open) {
#pragma unroll 4
      for (i32 r = 0; r < x.rows; ++r) x.bits_at(r)[word] = state == kNoneMasked ? x.exists : 0;
    }
    for (u32 left_open = __ballot_sync(0xffffffffu, open); left_open != 0; left_open &= left_open - 1) {
      const i32 of = __ffs(static_cast<int>(left_open)) - 1;
      const MaskTile found = x.evaluated(s * strip + of, __shfl_sync(0xffffffffu, by_mod, of));
      if (lane == of) state = found;
    }
    const u32 some = __ballot_sync(0xffffffffu, state != kAllMasked),
              whole = __ballot_sync(0xffffffffu, state == kNoneMasked || x.exists == 0);
    if (in && lane % block_words == 0) {
      const u32 block = (block_words == 32 ? ~0u : (1u << block_words) - 1) << lane;
      p.tiles[b * p.tile_stride[0] + x.h * p.tile_stride[1] + row / 64 * p.tile_stride[2] + word] =
          (some & block) == 0        ? kAllMasked
          : (whole & block) == block ? kNoneMasked
                                     : kSomeMasked;
    }
    if (!p.fragments.words) continue;
    __syncwarp();  // the bits are written
    for (i32 of = 0; of < min(strip, words - s * strip); ++of)
      x.write_fragments(s * strip + of, static_cast<MaskTile>(__shfl_sync(0xffffffffu, static_cast<int>(state), of)),
                        __shfl_sync(0xffffffffu, x.exists, of));
  }
}
