// Rows of Q, K and V as the fallback reads them: in pieces of 16 bytes, straight from global memory.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/mma/elements.cuh"

namespace onepass::fallback {

constexpr i32 kElementBytes = bytes_of(features.input), kPiece = 16 / kElementBytes;  // elements of a piece
constexpr bool kHalves = kElementBytes == 2;
constexpr i32 kKeys = 32;  // of a block
constexpr i32 kSpan = 64;  // columns of O at a time, of which a lane has 16
constexpr u32 kAll = 0xffffffffu;

// The loads that a lane has registers for, all on their way together. kPieces: of 16 bytes, where a tile is looked
// through; kAhead: times 32 elements of q and K (multiply_rows); kValues: V comes together with K.
struct LittleRoom {
  static constexpr i32 kPieces = kHalves ? 8 : 4, kAhead = 1;
  static constexpr bool kValues = false;
};
template <i32 registers>  // of a lane, in Hopper's forward
struct RoomFor {
  static constexpr bool kValues = registers >= 240 && !features.softcap;
  static constexpr i32 kPieces = kValues ? 16 : 8;
  static constexpr i32 kFew = registers >= 224 && !features.transforms() ? 2 : 1, kAhead = kValues ? 4 : kFew;
};

// All but special() is for elements of 16 bits.
struct Piece {
  u32 word[4];

  DEV bool special(i32 e) const {  // element e is a NaN or an infinity; e is a constant
    constexpr u32 kExponent = features.input == ScalarType::f16    ? 0x7c00u
                              : features.input == ScalarType::bf16 ? 0x7f80u
                                                                   : 0x7f800000u;
    const u32 bits = kHalves ? word[e / 2] >> e % 2 * 16 : word[e % 4];
    return (bits & kExponent) == kExponent;
  }
  // 0 while every element so far is finite.
  template <class Format = Element>
  DEV u32 probe(u32 zero) const {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) zero = Format::times_zero_plus(word[i], zero);
    return zero;
  }
  static DEV bool found(u32 zero) { return (zero & 0x7fff7fffu) != 0; }
  // 1 for each of the two elements of word i that are not finite, else 0, in their own type.
  template <class Format = Element>
  DEV u32 flags(i32 i) const {
    return Format::times_zero_plus(word[i], 0) & (features.input == ScalarType::f16 ? 0x3c003c00u : 0x3f803f80u);
  }
  DEV void clean() {  // elements that are not finite become 0
#pragma unroll
    for (i32 e = 0; e < 8; ++e) {
      if (special(e)) word[e / 2] &= e % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
    }
  }
};

// Reads elements of a row of `dim`, from `at` on; zeros behind its end and where there is no row. kAligned: rows begin
// at multiples of 16 bytes.
template <bool kAligned, i32 dim>
DEV Piece piece_of(const char* row, i32 at) {
  Piece x = {};
  if (row == nullptr || at >= dim) return x;
  const char* const from = row + at * kElementBytes;
  if (kAligned && (dim % kPiece == 0 || at + kPiece <= dim)) {
    const auto read = *reinterpret_cast<const Bytes<16>*>(from);
#pragma unroll
    for (i32 i = 0; i < 4; ++i) x.word[i] = read.word[i];
  } else if constexpr (!kAligned || dim % kPiece != 0) {
#pragma unroll
    for (i32 e = 0; e < kPiece; ++e) {
      if (at + e >= dim) continue;
      if constexpr (kHalves)
        x.word[e / 2] |= static_cast<u32>(reinterpret_cast<const u16*>(from)[e]) << e % 2 * 16;
      else
        x.word[e % 4] = reinterpret_cast<const u32*>(from)[e];
    }
  }
  return x;
}

// The rows of K or V of a head, by their keys.
struct KeyRows {
  const ForwardParams& p;
  KeyValueView view;
  const void* base;
  const long long (&stride)[3];
  i32 end;  // keys from here on are not read

  DEV const char* operator()(i32 key) const {  // null: nothing is to be read
    if (key >= end) return nullptr;
    const KeyValueView::Place at = view.place(p, key);
    return at.exists() ? static_cast<const char*>(base) + view.offset(stride, at) * kElementBytes : nullptr;
  }
};

}  // namespace onepass::fallback
