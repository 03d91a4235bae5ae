// Kernels of src/cuda/jvp, whole, on the host; as sm80_kernel.hpp.
#pragma once
#include <vector>

namespace warps {

enum class JvpFamily { plain, tiles, hopper };
struct JvpKernel {
  const char* name;
  const char* problem;   // a line that it is the kernel of
  const void* features;  // JvpFeatures
  JvpFamily family;
  const void* config;  // of the family; null of the plain kernel
  int shared_bytes;    // what the library gives a block
  // maps: cuda::jvp::sm90::Maps of TensorBoxes (hopper.hpp); null but of Hopper's kernel. params: JvpParams.
  void (*run)(const void* maps, const void* params, unsigned grid);
};
// Those of kernels.txt; each adds itself.
inline std::vector<const JvpKernel*> jvp_kernels;

}  // namespace warps
