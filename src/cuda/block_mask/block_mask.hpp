// The parameters of the kernels of a block mask. One definition for the host and the device half.
#pragma once
#include "cuda/attention/attention.hpp"
#include "expression/interval.hpp"

namespace onepass {

constexpr int kBlockMaskThreads = 256;
constexpr int kLevelBytes = kBlockMaskThreads * static_cast<int>(sizeof(interval::Bounds));  // shared memory of levels

enum class BufferType : int { f32, f16, bf16, i32, boolean };

// A buffer and the memory of its levels (interval::Levels). groups is null for a buffer of many rows whose levels would
// be too large. row_bounds: those of each row; with groups, they are the last level.
struct BufferLevels {
  ModBufferView view;
  int rank;
  BufferType type;
  interval::Bounds *groups, *row_bounds, *all;
  long long rows, length;
};

// A launch each, in this order: groups of 16 elements; the levels above them, or the bounds of rows; whole buffers.
enum class LevelPart : int { groups, levels, all };
struct LevelParams {
  BufferLevels buffers[8];
  LevelPart part;
  long long units;  // of CTAs, of all buffers
};
// The units of a buffer: 256 groups, a row, the buffer. Bounds of a buffer that no range asks for are not made.
ONEPASS_HD long long units_of(const BufferLevels& b, LevelPart part) {
  const long long groups = interval::groups_of(b.length);
  switch (part) {
    case LevelPart::groups: return b.groups ? (b.rows * groups + kBlockMaskThreads - 1) / kBlockMaskThreads : 0;
    case LevelPart::levels: return b.groups && groups == 1 ? 0 : b.rows;
    case LevelPart::all: return b.rows > interval::kMostRows ? 1 : 0;
  }
  return 0;
}

// Elements of a range of a buffer without groups that a lane reads: 64 rows of a tile of 128 keys. A larger range has
// the bounds of the whole buffer.
constexpr long long kMostOfRange = interval::kMostRows * 128;

struct BlockMaskParams {
  ModBufferView buffers[8];
  interval::Levels levels[8];
  int* states;          // 0 empty, 1 mixed, 2 full
  long long stride[4];  // elements: batch, head, tile of rows, tile of keys
  int rows, keys, tile_q, tile_k, heads, row_tiles, key_tiles;
  int strips;       // of 32 tiles of keys, in a row of tiles
  long long units;  // strips of all masks
  bool exact;
};

}  // namespace onepass
