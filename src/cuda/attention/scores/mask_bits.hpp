// A boolean mask as the forward kernels read it: a bit for each (row, key), and for each tile whether it hides all,
// some or none of its keys. One definition for the host and the device half.
#pragma once
#include "algebra/portable.hpp"

namespace onepass {

// Strides are 0 where the mask repeats. A tile is found under its first row / 64 and its first key / 32.
struct MaskBits {
  const unsigned* bits;  // key 32 w + b is bit b of word w
  const unsigned char* tiles;
  long long bits_stride[3], tile_stride[3];  // words, bytes; batch, head, row or 64 rows
};
enum MaskTile : unsigned char { kAllMasked = 0, kSomeMasked = 1, kNoneMasked = 2 };

// The same bits in the order of a transposed fragment (fragment.cuh) of 64 rows x 16 keys: of each lane a
// word, bit j for its score j, so that a block's bits are one coalesced load. Strides in words, 0 where the mask
// repeats: batch, head, 64 rows; every 16 keys are 32 words.
struct MaskFragments {
  unsigned* words;
  long long stride[3];
};

struct MaskPackParams {
  const unsigned char* mask;
  long long stride[4];    // bytes: batch, head, row, key
  int heads, rows, keys;  // as many as differ
  int block_m, block_n;   // of a tile; block_n a multiple of 32
  int m_tiles, n_blocks;
  long long units;  // tiles of all heads and batch entries
  unsigned* bits;
  unsigned char* tiles;
  long long bits_stride[3], tile_stride[3];
  MaskFragments fragments;  // words is null: not wanted; else tiles are 64 x 32
};

}  // namespace onepass
