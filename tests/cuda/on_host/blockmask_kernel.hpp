// The kernels of block masks of src/cuda, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct BlockMaskKernel {
  const char* name;
  const char* problem;                 // a line with its mask_mod
  void (*levels)(const void* params);  // LevelParams
  void (*tiles)(const void* params);   // BlockMaskParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const BlockMaskKernel*> block_mask_kernels;

}  // namespace warps
