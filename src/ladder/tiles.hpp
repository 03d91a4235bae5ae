// Tile shapes for a fast memory of M bytes.
#pragma once
#include "algebra/ceil_div.hpp"
#include "ladder/head.hpp"

namespace onepass::ladder {

struct TileShape {
  Index rows = 0, keys = 0;  // Br, Bc
};

// FlashAttention-1's choice (Algorithm 1, line 1): Bc = ceil(M / 4d), Br = min(Bc, d), M in elements as they are
// stored. It counts Q, K, V and O; scores and accumulators are left to the constant of the Theta.
template <class T>
TileShape paper_tiles(Index fast_bytes, const Head<T>& head) {
  const Index quarter = 4 * std::max(head.d(), head.dv()) * head.k.format().bytes;
  const Index keys = std::max<Index>(1, ceil_div(fast_bytes, quarter));
  return {std::min(keys, std::max(head.d(), head.dv())), keys};
}

// Shrinks the dimension that costs no traffic, then the other, each down to 16 (the rows of a matrix unit's tile) and
// only then further, until `bytes_of(shape)` fits.
template <class BytesOf>
TileShape fit(TileShape shape, Index TileShape::* free, Index fast_bytes, BytesOf&& bytes_of) {
  Index TileShape::* const other = free == &TileShape::rows ? &TileShape::keys : &TileShape::rows;
  for (const Index floor : {Index{16}, Index{1}}) {
    for (const auto side : {free, other}) {
      while (shape.*side > floor && bytes_of(shape) > fast_bytes) --(shape.*side);
    }
  }
  return shape;  // if even 1 x 1 does not fit, the machine says so
}

}  // namespace onepass::ladder
