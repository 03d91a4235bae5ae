// A tile of 128 rows of a head in the registers of a CTA, 16 rows in each warp: its loads, amax, and stores as e4m3.
//
// x is read once. A rotated tile is computed 64 columns at a time; where registers suffice the results are held from
// the amax until the store, else they are computed twice.
#pragma once
#include "cuda/device/e4m3.cuh"

#include "algebra/descale.hpp"
#include "cuda/quantize/hadamard.cuh"
#include "cuda/quantize/scale_group.cuh"

namespace onepass {

template <i32 job>
struct QuantizeTile {
  static constexpr QuantizeConfig kQ = quantize_jobs.job[job];
  static constexpr bool kRotated = kQ.hadamard, kSeveral = kQ.several;
  static constexpr i32 kPieces = kQ.dim / 32, kOuts = kQ.dim / 64;  // outs: 64 columns of results
  static constexpr i32 kHeld = kRotated && kOuts <= 2 && kQ.by_block ? kOuts : 1;
  static constexpr bool kHoldsAll = kHeld == kOuts;
  using Format = typename ElementOf<kQ.input>::Format;
  using Rotation = Hadamard<kQ.input, kPieces>;
  using Out = typename Rotation::Out;

  const QuantizeParams& p;
  i32 head, tile, last;  // x is tile `tile` of the head; the CTA's tiles end at `last`
  u32 x[2][kPieces][4];

  // The rotation of all tiles of the CTA, and the rotated columns that are held.
  struct Rotated {
    Rotation rotation;
    Out y[kHeld];
  };

  DEV static i32 first_tile(const QuantizeParams& p, i32 block) { return block % p.groups * p.tiles; }
  // The first tile of a CTA.
  DEV static QuantizeTile first(const QuantizeParams& p, i32 block) {
    const i32 tile = first_tile(p, block);
    return {p, block / p.groups, tile, min(p.blocks, tile + p.tiles)};
  }
  // Sets up what the tiles share, and starts the first tile's loads.
  DEV void begin(Rotated& rotated, u32 shared) {
    load(tile);
    begin_rotation(rotated, shared);
  }
  DEV void begin_rotation(Rotated& rotated, u32 shared) const {
    if constexpr (kRotated) Rotation::write_signs(p, signs(shared)), rotated.rotation.make_fragments();
  }
  // The loads are over: x becomes an operand.
  DEV void arrive(u32 shared) {
    if constexpr (kRotated) Rotation::change_signs(x, signs(shared));
  }
  // True if there is another tile; x then belongs to it.
  DEV bool next() { return kSeveral && ++tile < last; }

  // The largest absolute value of the tile, or `least`. finite: all elements are taken for finite, so an infinity is
  // returned and a NaN is not; else those that are not finite do not count. held: `rotated` has the columns.
  DEV float amax(Rotated& rotated, bool held, float least, bool finite) {
    if constexpr (!kRotated) return fmaxf(least, amax_of_x(finite));
    each_out(rotated, held, [&](const Out& y, i32) { least = amax_of(y, least, finite); });
    return least;
  }
  // Stores the tile, and starts the next tile's loads as soon as x is not needed. amax: grows to the tile's.
  DEV void store(Rotated& rotated, bool held, float scale, bool finite, float* amax = nullptr) {
    const float times = descale_inverse(scale);
    if constexpr (!kRotated) return store_x(times, finite);
    const bool x_is_free = held && kHoldsAll;
    Words word;
    each_out(rotated, held, [&](const Out& y, i32 o) {
      if (amax) *amax = amax_of(y, *amax);
      round(word, y, times * p.root, finite);
      if (x_is_free || o + 1 < kOuts) store_out(word, o);
      if (x_is_free && o == 0) load_next();
    });
    if (x_is_free) return;
    load_next(), store_out(word, kOuts - 1);
  }

  DEV i64 at(const long long* stride, i32 of_row) const {
    return head / p.heads * stride[0] + head % p.heads * stride[1] + of_row * stride[2];
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
  DEV void load_next() {
    if constexpr (kSeveral) load(tile + 1);
  }

 private:
  using Words = u32[2][4];  // 64 columns of rows g and g + 8 as e4m3

  DEV static u32 signs(u32 shared) { return shared + 2 * kWarps * 4; }
  DEV i32 lane() const { return static_cast<i32>(threadIdx.x % 32); }
  // The first of rows g and g + 8.
  DEV static i32 row_of(i32 of_tile) {
    return of_tile * kQuantizeTileRows + static_cast<i32>(threadIdx.x) / 32 * 16 +
           static_cast<i32>(threadIdx.x) % 32 / 4;
  }
  // f(y, o) with the rotated columns 64 o .. 64 o + 63, in order.
  template <class F>
  DEV void each_out(Rotated& rotated, bool held, const F& f) {
#pragma unroll(kHeld)
    for (i32 o = 0; o < kOuts; ++o) {
      Out& y = rotated.y[kHeld > 1 ? o : 0];
      if (!held || !kHoldsAll) rotated.rotation.rotate(y, x, o);
      f(y, o);
    }
  }
  DEV static float amax_of(const Out& y, float least, bool finite = true) {
#pragma unroll
    for (i32 i = 0; i < 32; ++i) {
      const float size = fabsf(y[i / 8][i / 4 % 2][i % 4]);
      least = fmaxf(least, finite || is_finite(size) ? size : 0.0f);
    }
    return least;
  }
  DEV float amax_of_x(bool finite) const {
    u32 two = 0;
#pragma unroll
    for (i32 i = 0; i < 8 * kPieces; ++i) {
      const u32 sizes = x[i / 4 / kPieces][i / 4 % kPieces][i % 4] & 0x7fff7fffu;
      two = Format::max(two, finite ? sizes : finite_halves<kQ.input>(sizes));
    }
    return fmaxf(Format::unpack(static_cast<u16>(two)), Format::unpack(static_cast<u16>(two >> 16)));
  }
  DEV static u32 four(float a, float b, float c, float d, float times, bool finite) {
    if (!finite) a += a - a, b += b - b, c += c - c, d += d - d;  // an infinity becomes NaN: e4m3 has none
    return to_e4m3(a * times, b * times, c * times, d * times);
  }
  DEV static void round(Words& word, const Out& y, float times, bool finite) {
#pragma unroll
    for (i32 i = 0; i < 8; ++i) {  // rows, bits 3 and 2
      const auto &a = y[i % 2 * 2][i / 2 % 2], &b = y[i % 2 * 2 + 1][i / 2 % 2];
      const i32 h = i / 4 * 2;
      word[i / 4][i % 4] = four(a[h], a[h + 1], b[h], b[h + 1], times, finite);
    }
  }
  DEV static void round(u32 (&word)[2], const u32 (&piece)[4], float times, bool finite) {
    const auto value = [&](i32 i) { return Format::unpack(static_cast<u16>(piece[i / 2] >> i % 2 * 16)); };
#pragma unroll
    for (i32 i = 0; i < 2; ++i)
      word[i] = four(value(4 * i), value(4 * i + 1), value(4 * i + 2), value(4 * i + 3), times, finite);
  }
  DEV void store_out(const Words& word, i32 out) const {
    const i32 row = row_of(tile);
#pragma unroll
    for (i32 h = 0; h < 2; ++h)
      if (row + 8 * h < p.rows) store_global(p.y + at(p.y_stride, row + 8 * h) + out * 64 + lane() % 4 * 16, word[h]);
  }
  // Stores x as it is.
  DEV void store_x(float times, bool finite) {
    u32 word[2 * kPieces][2];
    if constexpr (kSeveral) {
#pragma unroll
      for (i32 i = 0; i < 2 * kPieces; ++i) round(word[i], x[i / kPieces][i % kPieces], times, finite);
      load_next();
    }
    const i32 row = row_of(tile);
#pragma unroll
    for (i32 i = 0; i < 2 * kPieces; ++i) {
      const i32 of_row = row + i / kPieces * 8, j = i % kPieces;
      if constexpr (!kSeveral) round(word[i], x[i / kPieces][j], times, finite);
      if (of_row < p.rows) store_global(p.y + at(p.y_stride, of_row) + j * 32 + lane() % 4 * 8, word[i]);
    }
  }
};

}  // namespace onepass
