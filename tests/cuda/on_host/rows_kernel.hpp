// Kernels of src/cuda/softmax, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct RowsKernel {
  const char* name;
  const char* problem;                               // a line that it is the kernel of
  const void* config;                                // SoftmaxConfig
  void (*run)(const void* params, unsigned blocks);  // SoftmaxParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const RowsKernel*> rows_kernels;

}  // namespace warps
