// Kernels of src/cuda/backward_plain and src/cuda/backward_jvp, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

struct PlainBackwardKernel {
  const char* name;
  const char* problem;   // a line that it is the kernel of
  const void* features;  // PlainBackwardFeatures
  const void* shape;     // BackwardShape
  // Each part of cuda::backward_plain::kParts; PlainBackwardParams.
  void (*run[5])(const void* params, unsigned grid);
  const void* config = nullptr;  // cuda::backward_jvp::SecondConfig; null: there are only the plain kernels
  // Those on tensor cores, behind the first part: of rows, of keys.
  void (*run_second[2])(const void* params, unsigned grid) = {};
};
// Those of kernels.txt; each adds itself.
inline std::vector<const PlainBackwardKernel*> plain_backward_kernels;

}  // namespace warps
