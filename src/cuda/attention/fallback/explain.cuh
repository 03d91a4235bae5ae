// An element of O that is not finite is right if its row sees a NaN or an infinity in its column of V. All warps of a
// team look for those of one tile together.
//
// A warp looks through 32 keys. It leaves a word for each column, with a bit for each key whose value is not finite.
// Then each warp compares all of the words with the keys that its rows see, by products of bits. It needs no scores.
#pragma once
#include "cuda/attention/fallback/look_through.cuh"
#include "cuda/attention/fallback/stored.cuh"

namespace onepass::fallback {

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

// Every step-th line of a row is on its way to L2 before it is wanted.
DEV void ask(const char* row, i32 bytes, i32 from = 0, i32 step = 1) {
  constexpr i32 kLine = 128;
  if (row == nullptr) return;
#pragma unroll
  for (i32 at = 0; at < bytes; at += step * kLine) {
    if (at + from * kLine < bytes) prefetch(row + at + from * kLine);
  }
}
// Its rows of q, and of O unless all of it is stored again.
template <class Rows>
DEV void ask_ahead(const Rows& rows, bool all) {
  using Raw = typename ElementOf<forward_features.output>::Format::Raw;
  const i32 row = rows.first + rows.lane % 16, half = rows.lane / 16;
  const char* const query = rows.query_of(row);
  ask(query, features.dim_qk * kElementBytes, half, 2);
  if (query != nullptr && !all)
    ask(reinterpret_cast<const char*>(static_cast<const Raw*>(rows.p.out) + out_offset(rows.p, rows.tile(0), row)),
        features.dim_v * static_cast<i32>(sizeof(Raw)), half, 2);
}
// Its keys of the blocks from `first` on, one of each warp.
template <class Team>
DEV void ask_ahead(const Team& team, const KeyRows& k, const KeyRows& v, i32 first) {
  const i32 key = first / kKeys * kKeys + kKeys * team.warp + static_cast<i32>(opaque_thread() % 32);
  ask(v(key), min(kGroupSpans * kSpan, features.dim_v) * kElementBytes);
  ask(k(key), features.dim_qk * kElementBytes);
}

// The elements of `bad`, in a group of spans from column `begin` on, that see a value that is not finite, by all warps
// of the team. keys: those that the tile sees. Rows with wild elements (wild) and such keys are left to recompute().
template <bool kAligned, class Rows, class Team>
DEV Elements explain(const Elements& bad, const Rows& rows, const Team& team, const KeyRows& k, const KeyRows& v,
                     const Band32::Range& keys, i32 begin, bool wild, WildBlocks<(kSpanGroups > 1)>& blocks) {
  const i32 lane = rows.lane;
  Elements found = {};
  const auto pending = [&] {
    u32 some = 0;
#pragma unroll
    for (i32 s = 0; s < kGroupSpans; ++s) some |= bad.of[s] & ~found.of[s];
    return __any_sync(kAll, some != 0);
  };
  blocks.at = 1;
#pragma unroll 1
  for (i32 first = keys.lo / kKeys * kKeys; first < keys.hi; first += Team::kWarps * kKeys) {
    look_through<kAligned>(team, k, v, first + kKeys * team.warp, begin, lane, blocks);
    team.sync();
    if (!wild && pending()) compare(found, rows, team, first);
    if (!team.any(!wild && pending())) break;
  }
  return found;
}

}  // namespace onepass::fallback
