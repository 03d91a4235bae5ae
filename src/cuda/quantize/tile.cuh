// Rows of 16-bit numbers to fp8_e4m3, by tiles of 128 rows that stay in registers: x is read once and y written once.
// A block of threads has some tiles of a head in turn: what they share is made once, and the next one's loads are on
// their way while results are stored.
//
// A warp has 16 rows. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 and of them, in 16-byte pieces j, columns
// 32 j + 8 t + e: half of the A fragment of a product, k counting the column's bits 0, 3, 4 and 5. So tensor cores
// multiply by the Hadamard matrix of these four bits, and of all above them by adding products to one sum or taking
// them off; bits 1 and 2, which lie within a lane, are sums and differences. Shuffles, as many as three an element,
// were what the rotation waited for. The results' columns are 64 o + 16 t + e': 16 neighbours, one store.
//
// A launch has up to three jobs, such as q, k and v of one attention.
#pragma once
#include "cuda/device/dependent.cuh"
#include "cuda/device/e4m3.cuh"
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/mma/mma.cuh"

#include "algebra/descale.hpp"
#include "cuda/quantize/group.cuh"

namespace onepass {

template <i32 job>
struct QuantizeTile {
  static constexpr QuantizeConfig kQ = quantize_jobs.job[job];
  static constexpr bool kRotated = kQ.hadamard, kSeveral = kQ.several;
  static constexpr i32 kPieces = kQ.dim / 32, kOuts = kQ.dim / 64;  // outs: 64 columns of results
  using Format = typename ElementOf<kQ.input>::Format;
  using Out = float[4][2][4];  // columns' bits 1 and 2; bit 3; rows g and g + 8, bit 0

  const QuantizeParams& p;
  i32 head, tile, last;  // of the head's tiles the one that x is of, and where the block's end
  u32 x[2][kPieces][4];

  DEV static i32 first_tile(const QuantizeParams& p, i32 block) { return block % p.groups * p.tiles; }
  // The first of a block of threads.
  DEV static QuantizeTile first(const QuantizeParams& p, i32 block) {
    const i32 tile = first_tile(p, block);
    return {p, block / p.groups, tile, min(p.blocks, tile + p.tiles)};
  }
  // Whether there is another one, which x is of then.
  DEV bool next() { return kSeveral && ++tile < last; }

  DEV static u32 masks(u32 shared) { return shared + 2 * kWarps * 4; }
  DEV i32 lane() const { return static_cast<i32>(threadIdx.x % 32); }
  DEV i64 at(const long long* stride, i32 of_row) const {
    return head / p.heads * stride[0] + head % p.heads * stride[1] + of_row * stride[2];
  }

  // Of rows g and g + 8 the first.
  DEV static i32 row_of(i32 of_tile) {
    return of_tile * kQuantizeTileRows + static_cast<i32>(threadIdx.x) / 32 * 16 +
           static_cast<i32>(threadIdx.x) % 32 / 4;
  }
  DEV void load(i32 of_tile) {
    const i32 row = row_of(of_tile), rows = p.used_rows(), end = kSeveral ? min(rows, last * kQuantizeTileRows) : rows;
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const auto* const from = static_cast<const u16*>(p.x) + at(p.x_stride, row + 8 * h) + lane() % 4 * 8;
#pragma unroll
      for (i32 j = 0; j < kPieces; ++j) {
        float piece[4] = {};
        if (row + 8 * h < end) load_global(piece, reinterpret_cast<const float*>(from + j * 32));
#pragma unroll
        for (i32 w = 0; w < 4; ++w) x[h][j][w] = __float_as_uint(piece[w]);
      }
    }
  }

  // The signs of x's columns as its words have them, for all lanes of a quad; with a barrier.
  DEV void write_masks(u32 shared) const {
    for (i32 i = static_cast<i32>(threadIdx.x); i < kPieces * 16; i += kThreads) {
      const u32 signs = p.sign[i / 16] >> i % 16 * 2;
      store_word(masks(shared) + i * 4, static_cast<i32>((signs & 1) << 15 | (signs & 2) << 30));
    }
    __syncthreads();
  }
  DEV void change_signs(u32 shared) {
#pragma unroll
    for (i32 j = 0; j < kPieces; ++j) {
      u32 m[4];
      load_four(masks(shared) + (j * 4 + lane() % 4) * 16, m[0], m[1], m[2], m[3]);
#pragma unroll
      for (i32 w = 0; w < 4; ++w) x[0][j][w] ^= m[w], x[1][j][w] ^= m[w];
    }
  }
  // The B fragments, of 1 and -1, for results whose column's bit 3 is 0 and 1.
  DEV void hadamard(u32 (&b)[2][2]) const {
    constexpr u32 kOnes = kQ.input == ScalarType::bf16 ? 0x3f803f80u : 0x3c003c00u;
    const u32 t = threadIdx.x % 4, n = threadIdx.x % 32 / 4;  // bits 3, 4 of x's columns; bits 0, 4, 5 of the results'
#pragma unroll
    for (u32 bit3 = 0; bit3 < 2; ++bit3) {
#pragma unroll
      for (u32 bit5 = 0; bit5 < 2; ++bit5) {
        const u32 even = (t & bit3) ^ (t >> 1 & n >> 1 & 1) ^ (bit5 & n >> 2), odd = even ^ (n & 1);
        b[bit3][bit5] = kOnes ^ even << 15 ^ odd << 31;
      }
    }
  }
  // Times the root of how many columns are mixed.
  DEV void rotate(Out& y, i32 out, const u32 (&b)[2][2]) const {
#pragma unroll
    for (i32 w = 0; w < 4; ++w) {
#pragma unroll
      for (i32 bit3 = 0; bit3 < 2; ++bit3) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) y[w][bit3][i] = 0.0f;
#pragma unroll
        for (i32 j = 0; j < kPieces; j += 2) {
          const u32 a[4] = {x[0][j][w], x[1][j][w], x[0][j + 1][w], x[1][j + 1][w]};
          const i32 both = j / 2 & out;  // of two bits
          const u32 flip = ((both ^ both >> 1) & 1) == 0 ? 0 : 0x80008000u;
          mma_16816(Format{}, y[w][bit3], a, b[bit3][0] ^ flip, b[bit3][1] ^ flip);
        }
      }
    }
#pragma unroll
    for (i32 step = 1; step < 4; step *= 2) {
#pragma unroll
      for (i32 w = 0; w < 4; ++w) {
        if ((w & step) != 0) continue;
#pragma unroll
        for (i32 i = 0; i < 8; ++i) {
          float &first = y[w][i / 4][i % 4], &second = y[w | step][i / 4][i % 4];
          const float sum = first + second;
          second = first - second, first = sum;
        }
      }
    }
  }

  // The largest number that is finite, if all are: an infinity if any is one. A NaN gives way.
  DEV static float largest(const Out& y, float most, bool clean = true) {
#pragma unroll
    for (i32 i = 0; i < 32; ++i) {
      const float size = fabsf(y[i / 8][i / 4 % 2][i % 4]);
      most = fmaxf(most, clean || finite(size) ? size : 0.0f);
    }
    return most;
  }
  DEV float largest_of_x(bool clean) const {
    u32 two = 0;
#pragma unroll
    for (i32 i = 0; i < 8 * kPieces; ++i) {
      const u32 sizes = x[i / 4 / kPieces][i / 4 % kPieces][i % 4] & 0x7fff7fffu;
      two = Format::max(two, clean ? sizes : finite_halves<kQ.input>(sizes));
    }
    return fmaxf(Format::unpack(static_cast<u16>(two)), Format::unpack(static_cast<u16>(two >> 16)));
  }
  // Of 64 columns.
  using Words = u32[2][4];
  DEV static void round(Words& word, const Out& y, float times, bool clean) {
#pragma unroll
    for (i32 i = 0; i < 8; ++i) {  // rows, bits 3 and 2
      const auto &a = y[i % 2 * 2][i / 2 % 2], &b = y[i % 2 * 2 + 1][i / 2 % 2];
      const i32 h = i / 4 * 2;
      word[i / 4][i % 4] = four(a[h], a[h + 1], b[h], b[h + 1], times, clean);
    }
  }
  DEV void store(const Words& word, i32 out) const {
    const i32 row = row_of(tile);
#pragma unroll
    for (i32 h = 0; h < 2; ++h)
      if (row + 8 * h < p.rows) store_global(p.y + at(p.y_stride, row + 8 * h) + out * 64 + lane() % 4 * 16, word[h]);
  }
  // Of x as it is.
  DEV void store_x(float times, bool clean) {
    u32 word[2 * kPieces][2];
    if constexpr (kSeveral) {
#pragma unroll
      for (i32 i = 0; i < 2 * kPieces; ++i) round(word[i], x[i / kPieces][i % kPieces], times, clean);
      load_next();
    }
    const i32 row = row_of(tile);
#pragma unroll
    for (i32 i = 0; i < 2 * kPieces; ++i) {
      const i32 of_row = row + i / kPieces * 8, j = i % kPieces;
      if constexpr (!kSeveral) round(word[i], x[i / kPieces][j], times, clean);
      if (of_row < p.rows) store_global(p.y + at(p.y_stride, of_row) + j * 32 + lane() % 4 * 8, word[i]);
    }
  }
  DEV static void round(u32 (&word)[2], const u32 (&piece)[4], float times, bool clean) {
    const auto value = [&](i32 i) { return Format::unpack(static_cast<u16>(piece[i / 2] >> i % 2 * 16)); };
#pragma unroll
    for (i32 i = 0; i < 2; ++i)
      word[i] = four(value(4 * i), value(4 * i + 1), value(4 * i + 2), value(4 * i + 3), times, clean);
  }
  DEV static u32 four(float a, float b, float c, float d, float times, bool clean) {
    if (!clean) a += a - a, b += b - b, c += c - c, d += d - d;  // an infinity becomes NaN: e4m3 has none
    return to_e4m3(a * times, b * times, c * times, d * times);
  }

  // Where x is done with.
  DEV void load_next() {
    if constexpr (kSeveral) load(tile + 1);
  }

  // All results, one `Out` after the other, in as many as are held; done: they are held already.
  static constexpr i32 kHeld = kRotated && kOuts <= 2 && kQ.by_block ? kOuts : 1;  // its largest number, then all
  struct Outs {
    u32 b[2][2];
    Out y[kHeld];
  };
  template <class F>
  DEV void each_out(Outs& outs, bool done, const F& f) {
#pragma unroll(kHeld)
    for (i32 o = 0; o < kOuts; ++o) {
      Out& y = outs.y[kHeld > 1 ? o : 0];
      if (!done || kHeld < kOuts) rotate(y, o, outs.b);
      f(y, o);
    }
  }
  DEV float largest_of_all(Outs& outs, bool done, float most, bool clean) {
    if constexpr (!kRotated) return fmaxf(most, largest_of_x(clean));
    each_out(outs, done, [&](const Out& y, i32) { most = largest(y, most, clean); });
    return most;
  }
  // With the next tile's loads as soon as x is done with. most: the largest number goes there.
  DEV void store_all(Outs& outs, bool done, float factor, bool clean, float* most = nullptr) {
    const float times = descale_inverse(factor);
    if constexpr (!kRotated) return store_x(times, clean);
    const bool dead = done && kHeld == kOuts;
    Words word;
    each_out(outs, done, [&](const Out& y, i32 o) {
      if (most) *most = largest(y, *most);
      round(word, y, times * p.root, clean);
      if (dead || o + 1 < kOuts) store(word, o);
      if (dead && o == 0) load_next();
    });
    if (dead) return;
    load_next(), store(word, kOuts - 1);
  }
  // What a block's tiles share, and the first one's loads.
  DEV void begin(Outs& outs, u32 shared) {
    load(tile);
    if constexpr (kRotated) write_masks(shared), hadamard(outs.b);
  }
  // As the products take it.
  DEV void arrive(u32 shared) {
    if constexpr (kRotated) change_signs(shared);
  }

  // A factor for each tile alone, the least.
  DEV static void write_block(const QuantizeParams& p, i32 block, u32 shared) {
    QuantizeTile tile = first(p, block);
    Outs outs;
    tile.begin(outs, shared);
    u32 turn = 0;
    do {
      tile.arrive(shared);
      float most = block_max(tile.largest_of_all(outs, false, 0.0f, true), shared, turn++ % 2);
      const bool clean = finite(most);
      if (!clean) most = block_max(tile.largest_of_all(outs, true, 0.0f, false), shared, turn++ % 2);
      if constexpr (kRotated) most *= p.root, outs.b[0][0] = opaque(outs.b[0][0]);  // products once more, not kept
      const float factor = descale_for(most);
      if (threadIdx.x == 0) p.descale[tile.at(p.descale_stride, tile.tile)] = factor;
      tile.store_all(outs, true, factor, clean);
    } while (tile.next());
  }

  // With the factor of a guess, kept in sums, and the block's largest number in most, negative where there are
  // infinities, which do not count.
  DEV static void write_guessed(const QuantizeParams& p, i32 block, u32 shared) {
    QuantizeTile tile = first(p, block);
    const QuantizeGroup<job> group = QuantizeGroup<job>::of(p, tile.head);
    typename QuantizeGroup<job>::Sample sample;
    group.load(sample, tile.head);
    Outs outs;
    tile.begin(outs, shared);
    const float factor = descale_for(fminf(group.guess(sample, shared), 0x1p120f));
    if (threadIdx.x == 0 && tile.tile == 0) p.descale[tile.at(p.descale_stride, 0)] = p.sums[tile.head] = factor;
    float most = 0.0f;
    do {
      tile.arrive(shared);
      if constexpr (!kRotated || kHeld == kOuts) most = tile.largest_of_all(outs, false, most, true);
      tile.store_all(outs, kHeld == kOuts, factor, true, kHeld == kOuts ? nullptr : &most);
    } while (tile.next());
    most = block_max(most, shared, 1);
    const bool clean = finite(most);
    if (!clean) {
      most = 0.0f, tile.tile = first_tile(p, block), tile.load(tile.tile);
      do {
        tile.arrive(shared);
        most = tile.largest_of_all(outs, false, most, false);
        tile.store_all(outs, false, factor, false);
      } while (tile.next());
      most = block_max(most, shared, 0);
    }
    if constexpr (kRotated) most *= p.root;
    if (threadIdx.x == 0) p.most[block] = clean ? most : -most;
  }
  // All that share a factor once more whose guess was too small, with the least factor.
  DEV static void mend(const QuantizeParams& p, i32 block, u32 shared) {
    const i32 unit = block / p.menders, mender = block % p.menders, across = p.heads / p.group_heads;
    const QuantizeGroup<job> group{p, unit / across * p.group_batch * p.heads + unit % across * p.group_heads};
    QuantizeTile tile{p, group.first, 0, p.blocks};
    bool clean;
    const float most = group.largest(clean, shared);
    if (most <= 448.0f * p.sums[group.first]) return;
    const float factor = descale_for(most);
    if (threadIdx.x == 0 && mender == 0) p.descale[tile.at(p.descale_stride, 0)] = factor;
    Outs outs;
    if constexpr (kRotated) tile.write_masks(shared), tile.hadamard(outs.b);
    for (i32 i = mender; i < group.heads() * p.blocks; i += p.menders) {
      tile.head = group.head(i / p.blocks), tile.tile = i % p.blocks;
      tile.load(tile.tile), tile.arrive(shared);
      tile.store_all(outs, false, factor, clean);
    }
  }
};

template <i32 job = 0>
DEV void run_job(const QuantizeJobs& jobs, i32 block, u32 shared) {
  if constexpr (job + 1 < quantize_jobs.count)
    if (block >= jobs.blocks[job]) return run_job<job + 1>(jobs, block - jobs.blocks[job], shared);
  using Job = QuantizeTile<job>;
  const QuantizeParams& p = jobs.job[job];
  if constexpr (quantize_jobs.follows())
    wait_for_kernel_before();
  else
    let_next_kernel_start();
  constexpr QuantizePart kPart = Job::kQ.part;
  if constexpr (kPart == QuantizePart::guess)
    Job::write_guessed(p, block, shared);
  else if constexpr (kPart == QuantizePart::mend)
    Job::mend(p, block, shared);
  else
    Job::write_block(p, block, shared);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kThreads, onepass::quantize_jobs.blocks_at_once())
    quantize_tiles(const __grid_constant__ onepass::QuantizeJobs jobs) {
  extern __shared__ __align__(128) unsigned char smem[];
  onepass::run_job(jobs, static_cast<onepass::i32>(blockIdx.x), onepass::shared_address(smem));
}
