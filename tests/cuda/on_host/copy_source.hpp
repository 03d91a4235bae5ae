// The device source that copies tiles of tokens (src/cuda/mma/copy.cuh), run on the host.
#pragma once
#include <string>

namespace warps {

struct CopySource {
  int element_bytes, copy_bytes, rows;  // rows of a tile
  // Copies tokens [first, first + rows) of `tokens`, `dim` elements each, to the beginning of shared memory.
  void (*copy)(int dim, const char* tensor, long long token_stride, int tokens, int first);
  // Shared memory of a tile, and where a row's 16-byte chunk lies in it.
  int (*bytes)(int dim);
  int (*place)(int dim, int row, int chunk);
  std::string name() const {
    return std::to_string(element_bytes) + "ByteElements" + std::to_string(copy_bytes) + "ByteCopies";
  }
};
extern const CopySource copy_f32_4, copy_f32_8, copy_f32_16, copy_bf16_2, copy_bf16_4, copy_bf16_8, copy_bf16_16;

}  // namespace warps
