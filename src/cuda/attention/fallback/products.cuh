// The two products of the fallback, of sixteen rows and 32 keys by one warp: 16 bits by mma.sync, fp32 by FFMA, in
// which an infinity stays one. Lane 4 g + t has rows g and g + 8 and of the scores the columns of a fragment
// (column_of), of the output columns 16 t .. 16 t + 15 of a span.
//
// Fragments are read from global memory, 16 bytes a lane. A contraction may run in any order if both operands agree:
// lane t of a quad reads elements 8 t .. 8 t + 7 of 32, which are its places in two instructions. The columns of O may
// stand in any order, too: column g of the j-th instruction is column 8 g + j of the span.
#pragma once
#include "cuda/attention/fallback/pieces.cuh"
#include "cuda/mma/mma.cuh"

namespace onepass::fallback {

using Scores = float[kKeys / 2];
using Output = float[2 * 16];
DEV constexpr i32 output_at(i32 row, i32 column) {
  return kHalves ? column % 8 * 4 + row * 2 + column / 8 : 16 * row + column;
}

// s = Q K^T, of rows with kDim elements. q: this lane's rows; k(key): the address of a row, null if there is none.
// kAhead: times 32 elements of 16 bits, whose loads are on their way together.
template <bool kAligned, i32 kDim, i32 kAhead = 1, class Rows, class Format = Element>
DEV void multiply_rows(Scores& s, const char* const (&q)[2], const Rows& k, i32 first, i32 lane) {
  const i32 g = lane / 4, t = lane % 4;
#pragma unroll
  for (float& x : s) x = 0.0f;
  if constexpr (kHalves) {
    const char* rows[4];
#pragma unroll
    for (i32 n = 0; n < 4; ++n) rows[n] = k(first + 8 * n + g);
#pragma unroll kAhead
    for (i32 from = 0; from < kDim; from += 32) {
      const i32 at = from + 8 * t;
      const Piece a[2] = {piece_of<kAligned, kDim>(q[0], at), piece_of<kAligned, kDim>(q[1], at)};
#pragma unroll
      for (i32 n = 0; n < 4; ++n) {
        const Piece b = piece_of<kAligned, kDim>(rows[n], at);
#pragma unroll
        for (i32 i = 0; i < 4; i += 2) {
          const u32 left[4] = {a[0].word[i], a[1].word[i], a[0].word[i + 1], a[1].word[i + 1]};
          mma_16816(Format{}, s + 4 * n, left, b.word[i], b.word[i + 1]);
        }
      }
    }
  } else {
    const char* rows[8];
#pragma unroll
    for (i32 j = 0; j < 8; ++j) rows[j] = k(first + column_of(4 * (j / 2) + j % 2, t));
#pragma unroll 1
    for (i32 from = 0; from < kDim; from += 16) {  // sums of sums: 200 equal products would lose 6 bits
      Scores part = {};
#pragma unroll 1
      for (i32 at = from; at < from + 16; at += 4) {
        const Piece a[2] = {piece_of<kAligned, kDim>(q[0], at), piece_of<kAligned, kDim>(q[1], at)};
#pragma unroll
        for (i32 j = 0; j < 8; ++j) {
          const Piece b = piece_of<kAligned, kDim>(rows[j], at);
#pragma unroll
          for (i32 i = 0; i < 2; ++i) {
            float& sum = part[j / 2 * 4 + i * 2 + j % 2];
#pragma unroll
            for (i32 e = 0; e < 4; ++e) sum = fmaf(__uint_as_float(a[i].word[e]), __uint_as_float(b.word[e]), sum);
          }
        }
      }
#pragma unroll
      for (i32 e = 0; e < kKeys / 2; ++e) s[e] += part[e];
    }
  }
}

// True if 32 keys of a span have a value that is not finite. Whole rows of 128 or 256 bytes are read at once.
template <bool kAligned, i32 kDim, class Rows>
DEV bool has_special(const Rows& v, i32 first, i32 column, i32 lane) {
  constexpr i32 kAcross = kSpan / kPiece, kDown = 32 / kAcross;
  bool found = false;
#pragma unroll 8
  for (i32 row = lane / kAcross; row < kKeys; row += kDown) {
    const Piece x = piece_of<kAligned, kDim>(v(first + row), column + lane % kAcross * kPiece);
    if constexpr (kHalves) {
      found = found || Piece::found(x.probe(0));
    } else {
#pragma unroll
      for (i32 e = 0; e < kPiece; ++e) found = found || x.special(e);
    }
  }
  return __any_sync(kAll, found);
}

// Bit 16 i + c: column c of this lane's row i.
DEV constexpr u32 bit_at(i32 row, i32 column) { return 1u << (16 * row + column); }

// A left operand of two neighbouring keys' ones and zeros, from their bits.
DEV u32 ones_of(u32 bits) {
  constexpr u32 kOne = features.input == ScalarType::f16 ? 0x3c00u : 0x3f80u;
  return ((bits & 1) != 0 ? kOne : 0) | ((bits & 2) != 0 ? kOne << 16 : 0);
}

// A lane's part of sixteen of 32 keys of a span of V.
template <bool kAligned, i32 kDim, class Rows>
DEV void load_values(Piece (&x)[4], const Rows& v, i32 first, i32 step, i32 column, i32 lane) {
  const i32 g = lane / 4, t = lane % 4;
#pragma unroll
  for (i32 i = 0; i < 4; ++i)
    x[i] = piece_of<kAligned, kDim>(v(first + 16 * step + 2 * t + i % 2 + i / 2 * 8), column + 8 * g);
}
// All 32 keys, ahead of their product; or none.
template <bool kAligned, i32 kDim, bool ahead>
struct ValuesAhead {
  static constexpr bool kAhead = ahead;
  Piece of[2][4];
  template <class Rows>
  DEV void load(const Rows& v, i32 first, i32 column, i32 lane) {
#pragma unroll
    for (i32 step = 0; step < 2; ++step) load_values<kAligned, kDim>(of[step], v, first, step, column, lane);
  }
};
template <bool kAligned, i32 kDim>
struct ValuesAhead<kAligned, kDim, false> {
  static constexpr bool kAhead = false;
  template <class Rows>
  DEV void load(const Rows&, i32, i32, i32) {}
};

// o += W V, in which elements of V that are not finite are 0. Returns a bit for each element of o whose row sees one:
// seen has a bit for each score.
template <bool kAligned, i32 kDim, class Rows, class Values = ValuesAhead<kAligned, kDim, false>,
          class Format = Element>
DEV u32 multiply_columns(Output& o, const Scores& w, u32 seen, const Rows& v, i32 first, i32 column, i32 lane,
                         const Values& values = {}) {
  const i32 t = lane % 4;
  u32 flags = 0;
  if constexpr (kHalves) {
#pragma unroll
    for (i32 step = 0; step < 2; ++step) {
      const auto packed = [&](i32 e) { return Format::pack(w[8 * step + e], w[8 * step + e + 1]); };
      const u32 left[4] = {packed(0), packed(2), packed(4), packed(6)};
      const auto pair = [&](const u32(&x)[4], i32 i, i32 j) {  // columns j of two keys
        return choose_bytes(x[i], x[i + 1], j % 2 == 0 ? 0x5410u : 0x7632u);
      };
      Piece x[4];
      u32 zero = 0;
      if constexpr (Values::kAhead) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) x[i] = values.of[step][i];
      } else {
        load_values<kAligned, kDim>(x, v, first, step, column, lane);
      }
#pragma unroll
      for (const Piece& one : x) zero = one.probe(zero);
      if (__any_sync(kAll, Piece::found(zero))) {
        const auto ones = [&](i32 e) { return ones_of(seen >> (8 * step + e)); };
        const u32 visible[4] = {ones(0), ones(2), ones(4), ones(6)};
#pragma unroll
        for (i32 j = 0; j < 8; ++j) {
          const u32 held[4] = {x[0].flags(j / 2), x[1].flags(j / 2), x[2].flags(j / 2), x[3].flags(j / 2)};
          float sees[4] = {};
          mma_16816(Format{}, sees, visible, pair(held, 0, j), pair(held, 2, j));
#pragma unroll
          for (i32 i = 0; i < 4; ++i) flags |= sees[i] != 0.0f ? bit_at(i / 2, i % 2 * 8 + j) : 0u;
        }
#pragma unroll
        for (Piece& one : x) one.clean();
      }
#pragma unroll
      for (i32 j = 0; j < 8; ++j) {
        const u32 b[4] = {x[0].word[j / 2], x[1].word[j / 2], x[2].word[j / 2], x[3].word[j / 2]};
        mma_16816(Format{}, o + 4 * j, left, pair(b, 0, j), pair(b, 2, j));
      }
    }
  } else {
#pragma unroll
    for (i32 n = 0; n < 4; ++n) {
#pragma unroll 2
      for (i32 pair = 0; pair < 4; ++pair) {  // keys 8 n + 2 pair and + 1, whose weights lane `pair` of a quad has
        const i32 from = lane - t + pair;
        const u32 shown = __shfl_sync(kAll, seen, from) >> 4 * n;
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          const float weight[2] = {__shfl_sync(kAll, w[4 * n + e], from), __shfl_sync(kAll, w[4 * n + 2 + e], from)};
          const char* const row = v(first + 8 * n + 2 * pair + e);
          u32 held = 0;  // a bit for each column
#pragma unroll
          for (i32 c = 0; c < 16; c += 4) {
            Piece x = piece_of<kAligned, kDim>(row, column + 16 * t + c);
#pragma unroll
            for (i32 at = 0; at < 4; ++at) {
              held |= x.special(at) ? 1u << (c + at) : 0u;
              x.word[at] = x.special(at) ? 0u : x.word[at];
#pragma unroll
              for (i32 i = 0; i < 2; ++i) {
                float& sum = o[output_at(i, c + at)];
                sum = fmaf(weight[i], __uint_as_float(x.word[at]), sum);
              }
            }
          }
#pragma unroll
          for (i32 i = 0; i < 2; ++i) flags |= (shown >> (2 * i + e) & 1) != 0 ? held << 16 * i : 0u;
        }
      }
    }
  }
  return flags;
}

}  // namespace onepass::fallback
