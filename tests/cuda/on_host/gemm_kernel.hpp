// Kernels of src/cuda/gemm, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct GemmKernel {
  const char* name;
  const char* problem;                                                 // a line that it is the kernel of
  const void* config;                                                  // FlatGemmConfig
  void (*run)(const void* params, unsigned blocks, int shared_bytes);  // FlatGemmParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const GemmKernel*> gemm_kernels;

}  // namespace warps
