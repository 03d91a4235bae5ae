// Rows of 16-bit numbers to fp8_e4m3, by tiles of 128 rows that stay in registers: x is read once and y written once.
//
// A warp has 16 rows. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 and of them, in 16-byte pieces j, columns
// 32 j + 8 t + e: half of the A fragment of a product, k counting the column's bits 0, 3, 4 and 5. So tensor cores
// multiply by the Hadamard matrix of these four bits, and of all above them by adding products to one sum or taking
// them off; bits 1 and 2, which lie within a lane, are sums and differences. Shuffles, as many as three an element,
// were what the rotation waited for. The results' columns are 64 o + 16 t + e': 16 neighbours, one store.
//
// A launch has up to three jobs, such as q, k and v of one attention.
#pragma once
#include "cuda/attention/formats.cuh"
#include "cuda/device/dependent.cuh"
#include "cuda/device/e4m3.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/shared.cuh"

#include "core/descale.hpp"
#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

constexpr i32 kThreads = kQuantizeTileThreads, kWarps = kThreads / 32;

// Of all lanes.
DEV float warp_max(float x) {
#pragma unroll
  for (i32 lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
DEV bool finite(float x) { return x - x == 0.0f; }

template <i32 job>
struct QuantizeTile {
  static constexpr QuantizeConfig kQ = quantize_jobs.job[job];
  static constexpr bool kRotated = kQ.hadamard;
  static constexpr i32 kPieces = kQ.dim / 32, kOuts = kQ.dim / 64;  // outs: 64 columns of results
  using Format = typename ElementOf<kQ.input>::Format;
  using Out = float[4][2][4];  // columns' bits 1 and 2; bit 3; rows g and g + 8, bit 0

  const QuantizeParams& p;
  u32 x[2][kPieces][4];
  i32 head, row;  // of rows g and g + 8 the first

  DEV static u32 masks(u32 shared) { return shared + 2 * kWarps * 4; }
  DEV i32 lane() const { return static_cast<i32>(threadIdx.x % 32); }
  DEV i64 at(const long long* stride, i32 of_row) const {
    return head / p.heads * stride[0] + head % p.heads * stride[1] + of_row * stride[2];
  }

  DEV void load(i32 block) {
    row = block * kQuantizeTileRows + static_cast<i32>(threadIdx.x) / 32 * 16 + lane() / 4;
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const auto* const from = static_cast<const u16*>(p.x) + at(p.x_stride, row + 8 * h) + lane() % 4 * 8;
#pragma unroll
      for (i32 j = 0; j < kPieces; ++j) {
        float piece[4] = {};
        if (row + 8 * h < p.rows) load_global(piece, reinterpret_cast<const float*>(from + j * 32));
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
      two = Format::max(two, clean ? sizes : finite_halves(sizes));
    }
    return fmaxf(Format::unpack(static_cast<u16>(two)), Format::unpack(static_cast<u16>(two >> 16)));
  }
  DEV static u32 finite_halves(u32 sizes) {
    constexpr u32 kInfinity = kQ.input == ScalarType::bf16 ? 0x7f80u : 0x7c00u;
    return ((sizes & 0xffffu) < kInfinity ? sizes & 0xffffu : 0) | (sizes >> 16 < kInfinity ? sizes & 0xffff0000u : 0);
  }

  // Of 64 columns, or of x as it is.
  DEV void store(const Out& y, i32 out, float times, bool clean) const {
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      u32 word[4];
#pragma unroll
      for (i32 i = 0; i < 4; ++i) {  // bits 3 and 2
        const auto &a = y[i % 2 * 2][i / 2], &b = y[i % 2 * 2 + 1][i / 2];
        word[i] = four(a[2 * h], a[2 * h + 1], b[2 * h], b[2 * h + 1], times, clean);
      }
      if (row + 8 * h < p.rows) store_global(p.y + at(p.y_stride, row + 8 * h) + out * 64 + lane() % 4 * 16, word);
    }
  }
  DEV void store_x(float times, bool clean) const {
    const auto value = [](u32 word, i32 half) { return Format::unpack(static_cast<u16>(word >> 16 * half)); };
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
#pragma unroll
      for (i32 j = 0; j < kPieces; ++j) {
        u32 word[2];
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
          const u32 a = x[h][j][2 * i], b = x[h][j][2 * i + 1];
          word[i] = four(value(a, 0), value(a, 1), value(b, 0), value(b, 1), times, clean);
        }
        if (row + 8 * h < p.rows) store_global(p.y + at(p.y_stride, row + 8 * h) + j * 32 + lane() % 4 * 8, word);
      }
    }
  }
  DEV static u32 four(float a, float b, float c, float d, float times, bool clean) {
    if (!clean) a += a - a, b += b - b, c += c - c, d += d - d;  // an infinity becomes NaN: e4m3 has none
    return to_e4m3(a * times, b * times, c * times, d * times);
  }

  // Of all threads of the block, in all of them; turn: 0 or 1, one after the other.
  DEV static float block_max(float own, u32 shared, u32 turn) {
    const u32 at = shared + turn * kWarps * 4;
    own = warp_max(own);
    if (threadIdx.x % 32 == 0) store_word(at + threadIdx.x / 32 * 4, __float_as_int(own));
    __syncthreads();
    i32 most[kWarps];  // of numbers that are not negative, as integers
#pragma unroll
    for (i32 i = 0; i < kWarps; i += 4) load_four(at + i * 4, most[i], most[i + 1], most[i + 2], most[i + 3]);
#pragma unroll
    for (i32 i = 1; i < kWarps; ++i) most[0] = max(most[0], most[i]);
    return __int_as_float(most[0]);
  }

  // All results, one `Out` after the other, in as many as are held; done: they are held already.
  static constexpr bool kTwice = kQ.by_block || kQ.part == QuantizePart::guess;  // its largest number, then all
  static constexpr i32 kHeld = kRotated && kOuts <= 2 && kTwice ? kOuts : 1;
  struct Outs {
    u32 b[2][2];
    Out y[kHeld];
  };
  template <class F>
  DEV void each_out(Outs& outs, bool done, const F& f) const {
#pragma unroll(kHeld)
    for (i32 o = 0; o < kOuts; ++o) {
      Out& y = outs.y[kHeld > 1 ? o : 0];
      if (!done || kHeld < kOuts) rotate(y, o, outs.b);
      f(y, o);
    }
  }
  DEV float largest_of_all(Outs& outs, bool done, float most, bool clean) const {
    if constexpr (!kRotated) return fmaxf(most, largest_of_x(clean));
    each_out(outs, done, [&](const Out& y, i32) { most = largest(y, most, clean); });
    return most;
  }
  DEV void store_all(Outs& outs, bool done, float factor, bool clean) const {
    const float times = descale_inverse(factor);
    if constexpr (kRotated)
      each_out(outs, done, [&](const Out& y, i32 o) { store(y, o, times * p.root, clean); });
    else
      store_x(times, clean);
  }
  // again: the block has had rows before.
  DEV void begin(Outs& outs, i32 block, u32 shared, bool again = false) {
    load(block);
    if constexpr (!kRotated) return;
    if (!again) write_masks(shared);
    change_signs(shared), hadamard(outs.b);
  }

  // A factor for these rows alone, the least.
  DEV static void write_block(const QuantizeParams& p, i32 block, u32 shared) {
    QuantizeTile tile{p, {}, block / p.blocks};
    block %= p.blocks;
    Outs outs;
    tile.begin(outs, block, shared);
    float most = block_max(tile.largest_of_all(outs, false, 0.0f, true), shared, 0);
    const bool clean = finite(most);
    if (!clean) most = block_max(tile.largest_of_all(outs, true, 0.0f, false), shared, 1);
    if constexpr (kRotated) most *= p.root, outs.b[0][0] = opaque(outs.b[0][0]);  // products once more, not kept
    const float factor = descale_for(most);
    if (threadIdx.x == 0) p.descale[tile.at(p.descale_stride, block)] = factor;
    tile.store_all(outs, true, factor, clean);
  }

  // How large numbers of the head may become, judged by 4 KB of its rows: four times the largest of them, and where
  // they are mixed twice what sum |x| / root n lets one become. A piece of these rows, and what the block makes of it.
  static constexpr i32 kRowLanes = kQ.dim / 8, kSampledRows = kThreads / kRowLanes;
  DEV Bytes<16> sample() const {
    const i32 i = static_cast<i32>(threadIdx.x) / kRowLanes, column = static_cast<i32>(threadIdx.x) % kRowLanes * 8;
    if (i >= kSampledRows || p.rows == 0) return {};
    const auto of_row = static_cast<i32>(static_cast<i64>(p.rows) * i / kSampledRows);
    return *reinterpret_cast<const Bytes<16>*>(static_cast<const u16*>(p.x) + at(p.x_stride, of_row) + column);
  }
  DEV static float guess(const QuantizeParams& p, const Bytes<16>& piece, u32 shared) {
    float most = 0.0f, sum = 0.0f;
#pragma unroll
    for (i32 w = 0; w < 8; ++w) {
      const float size = Format::unpack(static_cast<u16>(finite_halves(piece.word[w / 2] & 0x7fff7fffu) >> w % 2 * 16));
      most = fmaxf(most, size), sum += size;
    }
    if constexpr (!kRotated) return block_max(4.0f * most, shared, 0);
#pragma unroll
    for (i32 lane = kRowLanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return block_max(2.0f * p.root * sum, shared, 0);
  }
  // With the factor of a guess, kept in sums, and the block's largest number in most, negative where there are
  // infinities, which do not count.
  DEV static void write_guessed(const QuantizeParams& p, i32 block, u32 shared) {
    const i32 word = block;
    QuantizeTile tile{p, {}, block / p.blocks};
    block %= p.blocks;
    const Bytes<16> piece = tile.sample();
    Outs outs;
    tile.begin(outs, block, shared);
    const float factor = descale_for(fminf(guess(p, piece, shared), 0x1p120f));
    if (threadIdx.x == 0 && block == 0) p.descale[tile.at(p.descale_stride, 0)] = p.sums[tile.head] = factor;
    float most = 0.0f;
    if constexpr (!kRotated) {
      tile.store_all(outs, true, factor, true);
      most = tile.largest_of_x(true);
    } else if constexpr (kHeld == kOuts) {
      most = tile.largest_of_all(outs, false, most, true);
      tile.store_all(outs, true, factor, true);
    } else {
      tile.each_out(outs, false, [&](const Out& y, i32 o) {
        most = largest(y, most);
        tile.store(y, o, descale_inverse(factor) * p.root, true);
      });
    }
    most = block_max(most, shared, 1);
    const bool clean = finite(most);
    if (!clean) {
      tile.begin(outs, block, shared, true);
      most = block_max(tile.largest_of_all(outs, false, 0.0f, false), shared, 0);
      tile.store_all(outs, false, factor, false);
    }
    if constexpr (kRotated) most *= p.root;
    if (threadIdx.x == 0) p.most[word] = clean ? most : -most;
  }
  // All of a head once more whose guess was too small, with the least factor.
  DEV static void mend(const QuantizeParams& p, i32 block, u32 shared) {
    QuantizeTile tile{p, {}, block / p.menders};
    bool clean;
    const float most = tile.surveyed(p.blocks, clean, shared);
    if (most <= 448.0f * p.sums[tile.head]) return;
    const float factor = descale_for(most);
    if (threadIdx.x == 0 && block % p.menders == 0) p.descale[tile.at(p.descale_stride, 0)] = factor;
    Outs outs;
    for (i32 i = block % p.menders; i < p.blocks; i += p.menders) {
      tile.begin(outs, i, shared, i >= p.menders);
      tile.store_all(outs, false, factor, clean);
    }
  }

  // The largest number of a piece of a head, where heads share a factor.
  DEV static void survey(const QuantizeParams& p, i32 block, u32 shared) {
    const i32 first = block % p.pieces * p.piece_rows, last = min(p.rows, first + p.piece_rows);
    QuantizeTile tile{p, {}, block / p.pieces};
    Outs outs;
    const auto seen = [&](bool clean) {
      float most = 0.0f;
      for (i32 i = first; i < last; i += kQuantizeTileRows) {
        tile.begin(outs, i / kQuantizeTileRows, shared, !clean || i > first);
        most = tile.largest_of_all(outs, false, most, clean);
      }
      return block_max(most, shared, !clean);
    };
    float most = seen(true);
    const bool clean = finite(most);
    if (!clean) most = seen(false);
    if constexpr (kRotated) most *= p.root;
    if (threadIdx.x == 0) p.most[block] = clean ? most : -most;
  }
  // Of all that share the head's factor, so many numbers a head.
  DEV float surveyed(i32 pieces, bool& clean, u32 shared) const {
    const i32 b = head / p.heads / p.group_batch * p.group_batch, h = head % p.heads / p.group_heads * p.group_heads;
    const i32 count = p.group_batch * p.group_heads * pieces;
    float most = 0.0f, infinite = 0.0f;
    for (i32 i = static_cast<i32>(threadIdx.x); i < count; i += kThreads) {
      const i32 pair = i / pieces, of = (b + pair / p.group_heads) * p.heads + h + pair % p.group_heads;
      const float found = p.most[static_cast<i64>(of) * pieces + i % pieces];
      if (__float_as_int(found) < 0) infinite = 1.0f;
      most = fmaxf(most, fabsf(found));
    }
    most = block_max(most, shared, 0);
    clean = block_max(infinite, shared, 1) == 0.0f;
    return most;
  }
  DEV static void write_surveyed(const QuantizeParams& p, i32 block, u32 shared) {
    QuantizeTile tile{p, {}, block / p.blocks};
    Outs outs;
    tile.begin(outs, block % p.blocks, shared);
    bool clean;
    const float factor = descale_for(tile.surveyed(p.pieces, clean, shared));
    if (threadIdx.x == 0 && block % p.blocks == 0) p.descale[tile.at(p.descale_stride, 0)] = factor;
    tile.store_all(outs, false, factor, clean);
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
  if constexpr (kPart == QuantizePart::survey)
    Job::survey(p, block, shared);
  else if constexpr (kPart == QuantizePart::guess)
    Job::write_guessed(p, block, shared);
  else if constexpr (kPart == QuantizePart::mend)
    Job::mend(p, block, shared);
  else if constexpr (Job::kQ.by_block)
    Job::write_block(p, block, shared);
  else
    Job::write_surveyed(p, jobs.blocks[job] - 1 - block, shared);  // surveyed last, it may be in the L2 cache still
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kThreads, onepass::quantize_jobs.blocks_at_once())
    quantize_tiles(const __grid_constant__ onepass::QuantizeJobs jobs) {
  extern __shared__ __align__(128) unsigned char smem[];
  onepass::run_job(jobs, static_cast<onepass::i32>(blockIdx.x), onepass::shared_address(smem));
}
