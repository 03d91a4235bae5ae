// An element of O that is not finite is right if its row sees a NaN or an infinity in its column of V. All warps of a
// team look for those of one tile together.
//
// A warp looks through 32 keys. It leaves a word for each column, with a bit for each key whose value is not finite.
// Then each warp compares all of the words with the keys that its rows see, by products of bits. It needs no scores.
#pragma once
#include "cuda/attention/fallback/block.cuh"
#include "cuda/attention/fallback/look_through.cuh"

namespace onepass::fallback {

// A bit for each of a lane's elements of a group, as bit_at() has them.
struct Elements {
  u32 of[kGroupSpans];
};

// look() with its loads on their way together; in decoding's repair that spills (docs/notes/nonfinite.md). kWords: rows
// of O begin at multiples of four bytes.
template <bool kWords, class Rows, class Format = typename ElementOf<forward_features.output>::Format>
DEV u32 look_ahead(const Rows& rows, i32 column, bool all) {
  using Raw = typename Format::Raw;
  const i32 from = column + rows.lane % 4 * 16, columns = max(min(features.dim_v - from, 16), 0);
  const auto address = [&](i32 i) {
    return static_cast<const volatile Raw*>(rows.p.out) + out_offset(rows.p, rows.tile(i), rows.row(i)) + from;
  };
  u32 bad = 0, existing = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) existing |= rows.exists(i) ? ((1u << columns) - 1) << 16 * i : 0u;
  if constexpr (kWords && sizeof(Raw) == 2 && features.dim_v % 2 == 0) {
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

// A bit for each of 32 keys: the band and the masks show it to this lane's row i.
template <class Rows>
DEV u32 keys_shown(const Rows& rows, i32 i, i32 first) {
  static_assert(Rows::kPackedMask);
  const auto& scores = rows.scores(i);
  const i32 row = rows.row(i);
  const Band32::Range keys = scores.band.keys_of(row);
  const i32 lo = max(keys.lo - first, 0), hi = min(keys.hi - first, kKeys);
  if (!rows.exists(i) || lo >= hi) return 0;
  u32 bits = ~0u >> (kKeys - hi) & ~0u << lo;
  if constexpr (features.bool_mask) bits &= scores.mask_row(row)[first / kKeys];
  if constexpr (features.mask_mod || features.tree) {
    TreeRow<i32> tree;
    if constexpr (features.tree) tree = scores.tree_row(row);
#pragma unroll 1
    for (u32 left = bits; left != 0; left &= left - 1) {
      const i32 key = first + __ffs(static_cast<int>(left)) - 1;
      bool seen = true;
      if constexpr (features.mask_mod) seen = !scores.masked(row, key);
      if constexpr (features.tree) seen = seen && tree.sees(key);
      if (!seen) bits &= ~(left & -left);
    }
  }
  return bits;
}

// Which elements see a value that is not finite in the blocks of 32 keys from `first` on, one of each warp: products of
// bits, four blocks at a time. Lane 4 g + t brings block t: what its rows see, and the words of columns 8 g to 8 g + 7.
template <class Rows, class Team>
DEV void compare(Elements& found, const Rows& rows, const Team& team, i32 first) {
  constexpr i32 kQuads = ceil_div(Team::kWarps, 4);
  const i32 lane = static_cast<i32>(opaque_thread() % 32), g = lane / 4, t = lane % 4;  // no register over the loop
  u32 sees[kQuads][2];
#pragma unroll
  for (i32 q = 0; q < kQuads; ++q) {
    const i32 block = 4 * q + t;
    const bool special = block < Team::kWarps && load_word(team.state(min(block, Team::kWarps - 1))) == kSpecial;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) sees[q][i] = special ? keys_shown(rows, i, first + kKeys * block) : 0u;
  }
#pragma unroll
  for (i32 s = 0; s < kGroupSpans; ++s) {
    i32 common[8][4] = {};
#pragma unroll
    for (i32 q = 0; q < kQuads; ++q) {
      u32 words[8];
      const u32 at = team.word(min(4 * q + t, Team::kWarps - 1), kSpan * s + 8 * g);
      load_four(at, words[0], words[1], words[2], words[3]);
      load_four(at + 16, words[4], words[5], words[6], words[7]);
#pragma unroll
      for (i32 n = 0; n < 8; ++n) mma_bits(common[n], sees[q], words[n]);
    }
    u32 more[2] = {};  // of each row: one word would be one chain of 32 instructions
#pragma unroll
    for (i32 n = 0; n < 8; ++n) {
#pragma unroll
      for (i32 e = 0; e < 4; ++e) more[e / 2] |= common[n][e] != 0 ? bit_at(e / 2, e % 2 * 8 + n) : 0u;
    }
    found.of[s] |= more[0] | more[1];
  }
}

// The elements of `bad`, in a group of spans from column `begin` on, that see a value that is not finite, by all warps
// of the team. keys: those that the tile sees. Rows and keys with wild elements are left to recompute().
template <bool kAligned, class Rows, class Team>
DEV Elements explain(const Elements& bad, const Rows& rows, const Team& team, const KeyRows& k, const KeyRows& v,
                     const Band32::Range& keys, i32 begin) {
  const i32 lane = rows.lane;
  Elements found = {};
  const auto pending = [&] {
    u32 some = 0;
#pragma unroll
    for (i32 s = 0; s < kGroupSpans; ++s) some |= bad.of[s] & ~found.of[s];
    return __any_sync(kAll, some != 0);
  };
  const auto query = [&](i32 row) { return rows.query_of(rows.first + row); };
  const bool wild = !kCapLast && has_wild<kAligned, 16>(query, lane);
#pragma unroll 1
  for (i32 first = keys.lo / kKeys * kKeys; first < keys.hi; first += Team::kWarps * kKeys) {
    look_through<kAligned>(team, k, v, first + kKeys * team.warp, begin, lane);
    team.sync();
    if (!wild && pending()) compare(found, rows, team, first);
    if (!team.any(!wild && pending())) break;
  }
  return found;
}

}  // namespace onepass::fallback
