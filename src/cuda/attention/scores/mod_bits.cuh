// Packs a mask_mod, with a boolean mask beside it, into bits, fragments and states of tiles (mask_bits.hpp), so that
// every kernel reads it as a boolean mask. Interval arithmetic tells tiles of 32 keys that are hidden or visible as a
// whole (user::mask_bounds); the mask is evaluated in the others alone.
//
// A CTA has a strip: the rows of a tile, and 32 words of 32 keys each, or as many as are whole blocks. Its first warp
// finds the bounds, a word a lane; then each warp writes and evaluates every eighth row.
#pragma once
#include "cuda/attention/scores/mask_bits.cuh"
#include "cuda/attention/scores/mod_bits.hpp"
#include "cuda/device/math.cuh"

namespace onepass {

constexpr i32 kModWarps = 8;

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
  // Evaluates the elements of word `of` in every eighth row from `first` on. by_mod: whether the mask_mod hides any.
  // some, hides: become other than 0 if one is visible, or hidden.
  DEV void evaluate(i32 of, i32 first, bool by_mod, u32& some, u32& hides) const {
    const i32 key = 32 * of + lane;
    const bool in = key < p.keys;
    const u32 keys = __ballot_sync(0xffffffffu, in);
    u32 any = 0, hidden = 0;
#pragma unroll 2
    for (i32 r = first; r < rows; r += kModWarps) {
      const i32 row = first_row + r;
      bool seen = in;
      if (by_mod) seen = seen && user::mask_mod(static_cast<i32>(b), static_cast<i32>(h), row, key, q.buffers);
      if constexpr (kReadsMask)
        seen = seen && p.mask[b * p.stride[0] + h * p.stride[1] + row * p.stride[2] + key * p.stride[3]] != 0;
      const u32 bits = __ballot_sync(0xffffffffu, seen);
      if (lane == 0) bits_at(r)[of] = bits;
      any |= bits, hidden |= bits ^ keys;
    }
    if (lane == 0) atomicOr(&some, any), atomicOr(&hides, hidden);
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
  extern __shared__ __align__(16) unsigned char smem[];
  u32 *const states = reinterpret_cast<u32*>(smem), *const some = states + 32, *const hides = some + 32;  // by word
  const MaskPackParams& p = q.pack;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, block_words = p.block_n / 32,
            strip = 32 / block_words * block_words, words = p.n_blocks * block_words, strips = ceil_div(words, strip);
  for (i64 unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
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
    if (warp == 0) states[lane] = x.by_bounds(), some[lane] = 0, hides[lane] = 0;
    __syncthreads();
    MaskTile state = static_cast<MaskTile>(states[lane]);
    const bool by_mod = state == kSomeMasked, open = by_mod || (kReadsMask && state == kNoneMasked);
    if (in && !open) {
#pragma unroll 4
      for (i32 r = warp; r < x.rows; r += kModWarps) x.bits_at(r)[word] = state == kNoneMasked ? x.exists : 0;
    }
    for (u32 left_open = __ballot_sync(0xffffffffu, open); left_open != 0; left_open &= left_open - 1) {
      const i32 of = __ffs(static_cast<int>(left_open)) - 1;
      x.evaluate(s * strip + of, warp, __shfl_sync(0xffffffffu, by_mod, of), some[of], hides[of]);
    }
    __syncthreads();
    if (open) state = some[lane] == 0 ? kAllMasked : hides[lane] == 0 ? kNoneMasked : kSomeMasked;
    const u32 shows = __ballot_sync(0xffffffffu, state != kAllMasked),
              whole = __ballot_sync(0xffffffffu, state == kNoneMasked || x.exists == 0);
    if (warp == 0 && in && lane % block_words == 0) {
      const u32 block = (block_words == 32 ? ~0u : (1u << block_words) - 1) << lane;
      p.tiles[b * p.tile_stride[0] + x.h * p.tile_stride[1] + row / 64 * p.tile_stride[2] + word] =
          (shows & block) == 0       ? kAllMasked
          : (whole & block) == block ? kNoneMasked
                                     : kSomeMasked;
    }
    if (p.fragments.words) {  // of the bits, which are written
      for (i32 of = warp; of < min(strip, words - s * strip); of += kModWarps)
        x.write_fragments(s * strip + of, static_cast<MaskTile>(__shfl_sync(0xffffffffu, static_cast<int>(state), of)),
                          __shfl_sync(0xffffffffu, x.exists, of));
    }
    __syncthreads();
  }
}
