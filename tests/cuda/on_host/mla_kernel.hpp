// Kernels of src/cuda/mla/mla.cuh, whole, on the host; as sm90_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct MlaKernel {
  const char* name;
  const char* problem;                                              // a line that it is the kernel of
  const void* features;                                             // ForwardFeatures
  const void* config;                                               // decode::MlaConfig
  void (*run)(const void* map, const void* params, unsigned grid);  // the tensor map of k, decode::DecodeParams
  void (*merge)(const void* params, unsigned grid, bool many);
};
// Those of kernels.txt; each adds itself.
inline std::vector<const MlaKernel*> mla_kernels;

}  // namespace warps
