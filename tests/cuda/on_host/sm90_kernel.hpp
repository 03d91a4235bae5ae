// Kernels of src/cuda/sm90, whole, on the host. Structures of the library travel as pointers: each kernel's source has
// its own, of the same layout.
#pragma once
#include <vector>

namespace warps {

struct Sm90Kernel {
  const char* name;
  const char* problem;   // a line that it is the kernel of
  const void* features;  // ForwardFeatures
  const void* config;    // sm90::ForwardConfig
  int shared_bytes;      // what the library gives a block
  // maps: five tensor maps that hold TensorBoxes (hopper.hpp): q, k, v, out, bias; EntropyParams.
  void (*run)(const void* maps, const void* params, unsigned grid);
};
// Those of kernels.txt; each adds itself.
inline std::vector<const Sm90Kernel*> sm90_kernels;

}  // namespace warps
