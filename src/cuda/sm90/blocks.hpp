// How tiles lie in shared memory, for both directions: as blocks of 128 bytes of columns, the swizzle's width,
// 1024-byte aligned, one behind the other.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass::sm90 {

constexpr int kBlockColumnBytes = 128, kBlockColumns = kBlockColumnBytes / 2;  // columns: of 16 bits
constexpr int kTileSlotBytes = 64;  // of a tile of work on its way from the producer to the consumers
ONEPASS_HD constexpr int column_blocks(int dim) { return round_up(dim, kBlockColumns) / kBlockColumns; }
// The same for elements of another size.
ONEPASS_HD constexpr int column_blocks(int dim, ScalarType type) {
  return round_up(dim * bytes_of(type), kBlockColumnBytes) / kBlockColumnBytes;
}

}  // namespace onepass::sm90
