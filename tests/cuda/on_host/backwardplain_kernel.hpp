// Kernels of src/cuda/backward_plain and src/cuda/backward_jvp, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

enum class SecondFamily { none, tiles, hopper };  // none: there are only the plain kernels
struct PlainBackwardKernel {
  const char* name;
  const char* problem;   // a line that it is the kernel of
  const void* features;  // PlainBackwardFeatures
  const void* shape;     // BackwardShape
  // Each part of cuda::backward_plain::kParts; PlainBackwardParams.
  void (*run[5])(const void* params, unsigned grid);
  SecondFamily family = SecondFamily::none;
  const void* config = nullptr;  // of the family: cuda::backward_jvp::SecondConfig, cuda::backward_jvp::sm90::Config
  int held = 0;                  // tokens of a CTA
  // Those on tensor cores, behind the first part: of rows, of keys. maps: cuda::backward_jvp::sm90::Maps of TensorBoxes
  // (hopper.hpp); null but of Hopper's kernels.
  void (*run_second[2])(const void* maps, const void* params, unsigned grid) = {};
};
// Those of kernels.txt; each adds itself.
inline std::vector<const PlainBackwardKernel*> plain_backward_kernels;

}  // namespace warps
