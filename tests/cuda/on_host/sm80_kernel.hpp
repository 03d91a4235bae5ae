// Kernels of src/cuda/sm80, whole, on the host. Structures of the library travel as pointers: each kernel's source has
// its own, of the same layout.
#pragma once
#include <vector>

namespace warps {

struct Sm80Kernel {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* features;                            // ForwardFeatures
  const void* config;                              // sm80::ForwardConfig
  int shared_bytes;                                // what the library gives a block
  void (*run)(const void* params, unsigned grid);  // EntropyParams
};
// Those of kernels.txt; each adds itself.
inline std::vector<const Sm80Kernel*> sm80_kernels;

}  // namespace warps
