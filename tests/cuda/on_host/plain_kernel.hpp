// The plain kernels of src/cuda, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct PlainKernel {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* config;                              // ForwardFeatures; PlainGemmConfig
  void (*run)(const void* params, unsigned grid);  // PlainParams; PlainGemmParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const PlainKernel*> plain_kernels, plain_gemm_kernels;

}  // namespace warps
