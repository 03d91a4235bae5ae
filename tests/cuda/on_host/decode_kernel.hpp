// Kernels of src/cuda/decode, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct DecodeKernel {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* features;                            // ForwardFeatures
  const void* config;                              // decode::DecodeConfig
  int shared_bytes;                                // what the library gives a block
  void (*run)(const void* params, unsigned grid);  // decode::DecodeParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const DecodeKernel*> decode_kernels;

}  // namespace warps
