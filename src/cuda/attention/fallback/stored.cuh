// The elements of the stored O that are not finite, with their loads on their way together.
#pragma once
#include "cuda/attention/fallback/block.cuh"
#include "cuda/attention/fallback/team.cuh"

namespace onepass::fallback {

// A bit for each of a lane's elements of a group, as bit_at() has them.
struct Elements {
  u32 of[kGroupSpans];
};

// A span of O in pieces of 16 bytes: the lanes of a quad read neighbours. Each reads every sector once.
struct OutPieces {
  float x[4][4];  // of row i, columns 8 t and 32 + 8 t, at 2 i

  template <class Rows>
  DEV void load(const Rows& rows, i32 column) {
    using Raw = typename ElementOf<forward_features.output>::Format::Raw;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i64 row = out_offset(rows.p, rows.tile(i), rows.row(i));
#pragma unroll
      for (i32 half = 0; half < 2; ++half) {
        const i32 from = column + 32 * half + rows.lane % 4 * 8;
        float(&piece)[4] = x[2 * i + half];
#pragma unroll
        for (float& word : piece) word = 0.0f;
        if (rows.exists(i) && from < features.dim_v)
          load_global_plain(piece, reinterpret_cast<const float*>(static_cast<const Raw*>(rows.p.out) + row + from));
      }
    }
  }
  // The elements that are not finite: found where they were read, wanted by the lanes that have the columns.
  template <class Format = typename ElementOf<forward_features.output>::Format>
  DEV u32 lost(i32 lane) const {
    u32 even = 0, odd = 0;  // columns of a piece: a nibble in a byte for each piece
#pragma unroll
    for (i32 n = 0; n < 4; ++n) {
      u32 bits = 0;
#pragma unroll
      for (i32 i = 3; i >= 0; --i)
        bits = 2 * bits + (Format::times_zero_plus(__float_as_uint(x[n][i]), 0) & 0x00010001u);
      even |= (bits & 0xfu) << 8 * n;
      odd |= bits >> 16 << 8 * n;
    }
    const auto spread = [](u32 nibbles) {
      nibbles = (nibbles | nibbles << 2) & 0x33333333u;
      return (nibbles | nibbles << 1) & 0x55555555u;
    };
    const u32 own = spread(even) | spread(odd) << 1;
    const i32 t = lane % 4, from = lane - t + t % 2 * 2;  // pieces 2 t and 2 t + 1 of eight
    const u32 first = __shfl_sync(kAll, own, from), second = __shfl_sync(kAll, own, from + 1);
    return choose_bytes(first, second, t < 2 ? 0x6240 : 0x7351);
  }
};

// look(), or all elements, with its loads on their way together. kOutBytes: rows of O begin at multiples of it.
template <i32 kOutBytes, class Rows, class Format = typename ElementOf<forward_features.output>::Format>
DEV u32 look_ahead(const Rows& rows, i32 column, bool all) {
  using Raw = typename Format::Raw;
  const i32 from = column + rows.lane % 4 * 16;
  const auto address = [&](i32 i) {
    return static_cast<const volatile Raw*>(rows.p.out) + out_offset(rows.p, rows.tile(i), rows.row(i)) + from;
  };
  const u32 existing = existing_elements(rows, column);
  u32 bad = 0;
  if constexpr (kOutBytes >= 4 && sizeof(Raw) == 2 && features.dim_v % 2 == 0) {
    u32 pairs[2][8];
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const auto* const at = reinterpret_cast<const volatile u32*>(address(i));
#pragma unroll
      for (i32 n = 0; n < 8; ++n) pairs[i][n] = (existing & bit_at(i, 2 * n)) != 0 ? at[n] : 0u;
    }
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      u32 bits = 0;  // of columns 2 n at n, of columns 2 n + 1 at 16 + n
#pragma unroll
      for (i32 n = 7; n >= 0; --n) bits = 2 * bits + (Format::times_zero_plus(pairs[i][n], 0) & 0x00010001u);
      bits = (bits | bits << 4) & 0x0f0f0f0fu;
      bits = (bits | bits << 2) & 0x33333333u;
      bits = (bits | bits << 1) & 0x55555555u;
      bad |= ((bits & 0xffffu) | bits >> 15) << 16 * i;
    }
  } else {
    constexpr i32 kTogether = 8;
#pragma unroll
    for (i32 first = 0; first < 32; first += kTogether) {
      const auto* const at = address(first / 16) + first % 16;
      float x[kTogether];
#pragma unroll
      for (i32 c = 0; c < kTogether; ++c) x[c] = (existing >> (first + c) & 1) != 0 ? Format::unpack(at[c]) : 0.0f;
#pragma unroll
      for (i32 c = 0; c < kTogether; ++c) bad |= is_finite(x[c]) ? 0u : 1u << (first + c);
    }
  }
  return opaque(all ? existing : bad);  // or each bit's origin would be kept for its store
}

// The elements of a group of spans, from column `begin` on, that are not finite, or all of them.
template <i32 kOutBytes, class Rows>
DEV Elements look_at_group(const Rows& rows, i32 begin, bool all) {
  constexpr bool kPieces = kOutBytes == 16 && bytes_of(forward_features.output) == 2 && features.dim_v % 8 == 0;
  constexpr i32 kTogether = kPieces && kGroupSpans % 2 == 0 ? 2 : 1;
  Elements bad = {};
#pragma unroll 1
  for (i32 s = 0; s < kGroupSpans; s += kTogether) {
    const i32 column = begin + s * kSpan;
    u32 some[kTogether];
    if constexpr (kPieces) {
      OutPieces pieces[kTogether];
#pragma unroll
      for (i32 n = 0; n < kTogether; ++n) pieces[n].load(rows, column + n * kSpan);
#pragma unroll
      for (i32 n = 0; n < kTogether; ++n) {
        const u32 lost = pieces[n].lost(rows.lane);
        some[n] = opaque(all ? existing_elements(rows, column + n * kSpan) : lost);
      }
    } else {
      some[0] = look_ahead<kOutBytes>(rows, column, all);
    }
#pragma unroll
    for (i32 i = 0; i < kGroupSpans; ++i) bad.of[i] = i / kTogether * kTogether == s ? some[i % kTogether] : bad.of[i];
  }
  return bad;
}

}  // namespace onepass::fallback
