// A warp's look at 32 keys: which elements of V are not finite.
#pragma once
#include "cuda/attention/fallback/team.cuh"

namespace onepass::fallback {

// kColumns columns of kRows rows of kDim elements in pieces, by a warp: visit(row, piece) for each of a lane's rows,
// the last one first, then leave(column, lanes of a row), whose column counts from `begin` on. A lane's rows are
// neighbours. at(row): an address or null. Its loads are on their way together.
template <bool kAligned, i32 kDim, i32 kColumns, i32 kRows, class Room, class At, class Visit, class Leave>
DEV void each_piece(const At& at, i32 begin, i32 lane, const Visit& visit, const Leave& leave) {
  constexpr i32 kPieces = round_up(kColumns, kPiece) / kPiece,
                kAcross = kPieces > 16  ? 32
                          : kPieces > 8 ? 16
                                        : 8,
                kOwn = kRows * kAcross / 32, kTogether = kOwn < Room::kPieces ? kOwn : Room::kPieces;
#pragma unroll 1
  for (i32 from = 0; from < kPieces; from += kAcross) {
    const i32 column = (from + lane % kAcross) * kPiece, first = lane / kAcross * kOwn;
#pragma unroll 1
    for (i32 row = first + kOwn - kTogether; row >= first; row -= kTogether) {
      Piece x[kTogether];
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) x[i] = piece_of<kAligned, kDim>(at(row + i), begin + column);
#pragma unroll
      for (i32 i = kTogether - 1; i >= 0; --i) visit(row + i, x[i]);
    }
    leave(column, kAcross);
  }
}

// True if some |element| is at least 2^58, or with fp16, where no product overflows, infinity.
template <bool kAligned, i32 kRows, class Room, class At>
DEV bool has_wild(const At& at, i32 lane) {
  constexpr u32 kLeast = features.input == ScalarType::f16 ? 0x7c00u : (127 + 58) << (kHalves ? 7 : 23);
  u32 low[4] = {},
      high[4] = {};  // the largest of each word of a piece; below the high half lie bits that do not matter
  each_piece<kAligned, features.dim_qk, features.dim_qk, kRows, Room>(
      at, 0, lane,
      [&](i32, const Piece& x) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
          if constexpr (kHalves) low[i] = max(low[i], x.word[i] & 0x7fffu);
          high[i] = max(high[i], x.word[i] & 0x7fffffffu);
        }
      },
      [](i32, i32) {});
  bool wild = false;
#pragma unroll
  for (i32 i = 0; i < 4; ++i) wild |= low[i] >= kLeast || high[i] >= (kHalves ? kLeast << 16 : kLeast);
  return __any_sync(kAll, wild);
}

// A bit for each of 32 keys and each of a piece's columns: the element is not finite. Rows come last one first.
struct SpecialBits {
  u32 word[kPiece] = {};          // fp32: of a column
  u32 low[4] = {}, high[4] = {};  // 16 bits: a half for each column, of a lane's first and last sixteen rows

  template <class Format = Element>
  DEV void add(i32 row, const Piece& x) {
    if constexpr (kHalves) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) {
        if (row == 15) high[i] = low[i], low[i] = 0;
        low[i] = 2 * low[i] + (Format::times_zero_plus(x.word[i], 0) & 0x00010001u);
      }
    } else {
#pragma unroll
      for (i32 e = 0; e < kPiece; ++e) word[e] |= x.special(e) ? 1u << row : 0u;
    }
  }
  // Joins the lanes of a column: the first of them has its words.
  DEV void join(i32 across) {
    if constexpr (kHalves) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) {
        if (across == 8) low[i] |= __shfl_xor_sync(kAll, low[i], 8) << 8;
        if (across < 32) high[i] = __shfl_xor_sync(kAll, low[i], 16);
        word[2 * i] = choose_bytes(low[i], high[i], 0x5410);
        word[2 * i + 1] = choose_bytes(low[i], high[i], 0x7632);
      }
    } else {
#pragma unroll
      for (u32& x : word) {
        for (i32 step = across; step < 32; step *= 2) x |= __shfl_xor_sync(kAll, x, step);
      }
    }
  }
};

// The result of a warp's look at 32 keys.
enum BlockState : i32 { kAllFinite, kSpecial, kSpecialAndWild };

// A warp's blocks of keys, in their order. kKept: other columns of V come to the same ones, and need not look at K
// again.
template <bool kKept>
struct WildBlocks {
  u32 known = 0, wild = 0, at = 1;  // a bit for each of the first 32; of the block at hand, or 0

  template <class Look>
  DEV bool ask(const Look& look) {
    if (kKept && (known & at) != 0) return (wild & at) != 0;
    const bool found = look();
    if constexpr (kKept) known |= at, wild |= found ? at : 0u;
    return found;
  }
};

template <bool kAligned, class Team>
DEV void look_through(const Team& team, const KeyRows& k, const KeyRows& v, i32 first, i32 begin, i32 lane,
                      WildBlocks<(kSpanGroups > 1)>& blocks) {
  u32 some = 0;
  SpecialBits bits;
  each_piece<kAligned, features.dim_v, Team::kColumns, kKeys, typename Team::Room>(
      [&](i32 row) { return v(first + row); }, begin, lane, [&](i32 row, const Piece& x) { bits.add(row, x); },
      [&](i32 column, i32 across) {
        bits.join(across);
        if (lane < across && column < Team::kColumns) {
#pragma unroll
          for (i32 e = 0; e < kPiece; e += 4) {
            const u32* const words = bits.word + e;
            store_four(team.word(team.warp, column + e), words[0], words[1], words[2], words[3]);
            some |= words[0] | words[1] | words[2] | words[3];
          }
        }
        bits = {};
      });
  i32 state = kAllFinite;
  if (__any_sync(kAll, some != 0)) {
    const auto key = [&](i32 row) { return k(first + row); };
    const auto wild = [&] { return has_wild<kAligned, kKeys, typename Team::Room>(key, lane); };
    state = !kCapLast && blocks.ask(wild) ? kSpecialAndWild : kSpecial;
  }
  blocks.at <<= 1;
  if (lane == 0) store_word(team.state(team.warp), state);
}

}  // namespace onepass::fallback
