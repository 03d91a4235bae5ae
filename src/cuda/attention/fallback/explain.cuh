// An element of O that is not finite is right if its row sees a NaN or an infinity in its column of V. All warps of a
// team look for those of one tile together.
//
// A warp looks through 32 keys. It leaves a word for each column, with a bit for each key whose value is not finite.
// Then each warp compares all of the words with the keys that its rows see. It needs no scores.
#pragma once
#include "cuda/attention/fallback/block.cuh"
#include "cuda/attention/fallback/team.cuh"

namespace onepass::fallback {

constexpr i32 kSpans = (features.dim_v + kSpan - 1) / kSpan;

// recompute() alone is as good where every row sees every key: it soon meets what explains an element. Beyond 256
// columns the bits of a lane's elements are 16 registers. A pair whose score is -inf is hidden: a bias or a score_mod
// can make it so. Else it takes an infinity or elements of 2^58 and more, so q is looked through, and K where V is not
// finite.
constexpr bool kMasksHide = features.bounded_left || features.bounded_right || features.masks() || features.tree ||
                            features.packed || features.cache();
constexpr bool kScoresHide = kTransforms && !kCapLast;
constexpr bool kExplains = kMasksHide && !kScoresHide && kSpans <= 4;

// A bit for each of a lane's elements, as bit_at() has them.
struct Elements {
  u32 of[kSpans];
};

// look() with eight loads on their way together; in decoding's repair that spills (docs/notes/nonfinite.md).
template <class Rows>
DEV u32 look_ahead(const Rows& rows, i32 column, bool all) {
  using Format = typename ElementOf<forward_features.output>::Format;
  constexpr i32 kTogether = 8;
  const i32 from = column + rows.lane % 4 * 16, columns = min(features.dim_v - from, 16);
  u32 bad = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const auto* const at = static_cast<const volatile typename Format::Raw*>(rows.p.out) +
                           out_offset(rows.p, rows.tile(i), rows.row(i)) + from;
    const auto exists = [&](i32 c) { return rows.exists(i) && c < columns; };
#pragma unroll
    for (i32 first = 0; first < 16; first += kTogether) {
      float x[kTogether];
#pragma unroll
      for (i32 c = 0; c < kTogether; ++c) x[c] = exists(first + c) ? Format::unpack(at[first + c]) : 0.0f;
#pragma unroll
      for (i32 c = 0; c < kTogether; ++c)
        bad |= exists(first + c) && (all || !is_finite(x[c])) ? bit_at(i, first + c) : 0u;
    }
  }
  return opaque(bad);  // or each bit's origin would be kept for its store
}

// True if |element e| is at least 2^58, or with fp16, where no product overflows, infinity.
DEV bool is_wild(const Piece& x, i32 e) {
  constexpr u32 kLeast = features.input == ScalarType::f16 ? 0x7c00u : (127 + 58) << (kHalves ? 7 : 23);
  return (kHalves ? x.word[e / 2] >> e % 2 * 16 & 0x7fff : x.word[e % 4] & 0x7fffffff) >= kLeast;
}

// The pieces of kRows rows of kDim elements, by a warp: visit(row, piece) for each of a lane's rows, then
// leave(column, lanes of a row). at(row): an address or null. Four loads are on their way together.
template <bool kAligned, i32 kDim, i32 kRows, class At, class Visit, class Leave>
DEV void each_piece(const At& at, i32 lane, const Visit& visit, const Leave& leave) {
  constexpr i32 kPieces = padded(kDim, kPiece) / kPiece, kTogether = 4;
  constexpr i32 kAcross = kPieces > 16 ? 32 : kPieces > 8 ? 16 : 8, kDown = 32 / kAcross;
#pragma unroll 1
  for (i32 from = 0; from < kPieces; from += kAcross) {
    const i32 column = (from + lane % kAcross) * kPiece;
#pragma unroll 1
    for (i32 row = lane / kAcross; row < kRows; row += kTogether * kDown) {
      Piece x[kTogether];
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) x[i] = piece_of<kAligned, kDim>(at(row + i * kDown), column);
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) visit(row + i * kDown, x[i]);
    }
    leave(column, kAcross);
  }
}
template <bool kAligned, i32 kRows, class At>
DEV bool has_wild(const At& at, i32 lane) {
  bool wild = false;
  each_piece<kAligned, features.dim_qk, kRows>(
      at, lane,
      [&](i32, const Piece& x) {
#pragma unroll
        for (i32 e = 0; e < kPiece; ++e) wild |= is_wild(x, e);
      },
      [](i32, i32) {});
  return __any_sync(kAll, wild);
}

// The result of a warp's look at 32 keys.
enum BlockState : i32 { kAllFinite, kSpecial, kSpecialAndWild };

template <bool kAligned, class Team>
DEV void look_through(const Team& team, const KeyRows& k, const KeyRows& v, i32 first, i32 lane) {
  u32 some = 0, words[kPiece] = {};
  each_piece<kAligned, features.dim_v, kKeys>([&](i32 row) { return v(first + row); }, lane,
                                              [&](i32 row, const Piece& x) {
                                                if constexpr (kHalves) {
                                                  if (!Piece::found(x.probe(0))) return;
                                                }
#pragma unroll
                                                for (i32 e = 0; e < kPiece; ++e)
                                                  words[e] |= x.special(e) ? 1u << row : 0u;
                                              },
                                              [&](i32 column, i32 across) {
#pragma unroll
                                                for (u32& word : words) {
                                                  for (i32 step = across; step < 32; step *= 2)
                                                    word |= __shfl_xor_sync(kAll, word, step);
                                                  some |= word;
                                                }
                                                if (lane < across && column < Team::kColumns) {
#pragma unroll
                                                  for (i32 e = 0; e < kPiece; e += 4)
                                                    store_four(team.word(team.warp, column + e), words[e], words[e + 1],
                                                               words[e + 2], words[e + 3]);
                                                }
#pragma unroll
                                                for (u32& word : words) word = 0;
                                              });
  i32 state = kAllFinite;
  if (__any_sync(kAll, some != 0)) {
    const auto key = [&](i32 row) { return k(first + row); };
    state = !kCapLast && has_wild<kAligned, kKeys>(key, lane) ? kSpecialAndWild : kSpecial;
  }
  if (lane == 0) store_word(team.state(team.warp), state);
}

// Bits of scores, as shown() has them, become a bit for each of 32 keys of this lane's row i.
DEV u32 keys_of_row(u32 seen, i32 i, i32 lane) {
  u32 keys = 0;
  each_score(i, [&](i32 e) { keys |= (seen >> e & 1) << column_of(e, lane % 4); });
  keys |= __shfl_xor_sync(kAll, keys, 1);
  return keys | __shfl_xor_sync(kAll, keys, 2);
}

// The elements of `bad` that see a value that is not finite, by all warps of the team. keys: those that the tile sees.
// Rows and keys with wild elements are left to recompute().
template <bool kAligned, class Rows, class Team>
DEV Elements explain(const Elements& bad, const Rows& rows, const Team& team, const KeyRows& k, const KeyRows& v,
                     const Band32::Range& keys) {
  const i32 lane = rows.lane;
  Elements found = {};
  const auto pending = [&] {
    u32 some = 0;
#pragma unroll
    for (i32 s = 0; s < kSpans; ++s) some |= bad.of[s] & ~found.of[s];
    return __any_sync(kAll, some != 0);
  };
  const auto query = [&](i32 row) { return rows.query_of(rows.first + row); };
  const bool wild = !kCapLast && has_wild<kAligned, 16>(query, lane);
#pragma unroll 1
  for (i32 first = keys.lo / kKeys * kKeys; first < keys.hi; first += Team::kWarps * kKeys) {
    look_through<kAligned>(team, k, v, first + kKeys * team.warp, lane);
    team.sync();
#pragma unroll 1
    for (i32 block = 0; block < Team::kWarps; ++block) {
      const i32 state = load_word(team.state(block));
      if (state != kSpecial || wild || !pending()) continue;
      const u32 seen = shown(rows, first + kKeys * block);
      const u32 sees[2] = {keys_of_row(seen, 0, lane), keys_of_row(seen, 1, lane)};
#pragma unroll
      for (i32 s = 0; s < kSpans; ++s) {
#pragma unroll
        for (i32 c = 0; c < 16; c += 4) {
          u32 words[4];
          load_four(team.word(block, kSpan * s + 16 * (lane % 4) + c), words[0], words[1], words[2], words[3]);
#pragma unroll
          for (i32 e = 0; e < 4; ++e) {
            found.of[s] |= (words[e] & sees[0]) != 0 ? bit_at(0, c + e) : 0u;
            found.of[s] |= (words[e] & sees[1]) != 0 ? bit_at(1, c + e) : 0u;
          }
        }
      }
    }
    if (!team.any(!wild && pending())) break;
  }
  return found;
}

}  // namespace onepass::fallback
