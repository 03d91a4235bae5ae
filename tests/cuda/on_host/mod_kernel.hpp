// The packing of mask_mods of src/cuda, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct ModKernel {
  const char* name;
  const char* problem;              // a line with its mask_mod
  void (*run)(const void* params);  // ModPackParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const ModKernel*> mod_kernels;

}  // namespace warps
