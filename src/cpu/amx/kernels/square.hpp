// Four accumulator tiles, 32 x 32 numbers, and what is added to them: C += A B with A of 32 rows x 32 deep, B of 32
// deep x 32 columns, 64 cycles for four tile loads. Tiles: tiles.hpp, or the tests' plain arrays.
#pragma once
#include <cstddef>
#include <cstdint>

namespace onepass::cpu::amx {

// Where the second tiles lie, in elements of what they hold, and the bytes from row to row inside a tile: 64 where a
// tile is 1 KB in a row.
struct SquareLayout {
  std::int64_t right = 0;  // C's, B's second column of tiles
  std::int64_t down = 0;   // C's, A's second row of tiles
  std::ptrdiff_t row_bytes = 64;
};

template <class Tiles>
struct Square {
#define ONEPASS_TILES static inline __attribute__((always_inline)) void
  ONEPASS_TILES zero() {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  ONEPASS_TILES load(const float* c, const SquareLayout& at) {
    Tiles::template load<0>(c, at.row_bytes);
    Tiles::template load<1>(c + at.right, at.row_bytes);
    Tiles::template load<2>(c + at.down, at.row_bytes);
    Tiles::template load<3>(c + at.down + at.right, at.row_bytes);
  }
  ONEPASS_TILES store(float* c, const SquareLayout& at) {
    Tiles::template store<0>(c, at.row_bytes);
    Tiles::template store<1>(c + at.right, at.row_bytes);
    Tiles::template store<2>(c + at.down, at.row_bytes);
    Tiles::template store<3>(c + at.down + at.right, at.row_bytes);
  }
  // A's tiles are read once; those of B, pairs, are 1 KB in a row and the second is `right` away.
  ONEPASS_TILES add(const std::uint16_t* a, const SquareLayout& at, const std::uint32_t* b, std::int64_t right) {
    Tiles::template load_once<4>(a, at.row_bytes);
    Tiles::template load<6>(b, 64);
    Tiles::template dot<0, 4, 6>();
    Tiles::template load<7>(b + right, 64);
    Tiles::template dot<1, 4, 7>();
    Tiles::template load_once<5>(a + at.down, at.row_bytes);
    Tiles::template dot<2, 5, 6>();
    Tiles::template dot<3, 5, 7>();
  }
#undef ONEPASS_TILES
};

}  // namespace onepass::cpu::amx
