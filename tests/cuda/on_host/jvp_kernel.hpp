// Kernels of src/cuda/jvp, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct JvpKernel {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* features;                            // JvpFeatures
  const void* config;                              // cuda::jvp::JvpConfig; null of the plain kernel
  int shared_bytes;                                // what the library gives a block
  void (*run)(const void* params, unsigned grid);  // JvpParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const JvpKernel*> jvp_kernels;

}  // namespace warps
