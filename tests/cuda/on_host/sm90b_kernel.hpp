// The backward kernels of src/cuda/sm90, whole, on the host, with those in front of and behind them.
#pragma once
#include <vector>

namespace warps {

struct Sm90BackwardKernel {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* features;                            // BackwardFeatures
  const void* shape;                               // BackwardShape
  const void* config;                              // sm90::BackwardConfig
  int shared_bytes;                                // what the library gives a block
  void (*pre)(const void* params, unsigned grid);  // BackwardParams
  // maps: six tensor maps that hold TensorBoxes (hopper.hpp): q, k, v, dout, bias, dbias.
  void (*run)(const void* maps, const void* params, unsigned grid);
  void (*post)(const void* params, unsigned grid);
  void (*sums)(const void* params, unsigned grid);
};
// Those of kernels.txt; each adds itself.
inline std::vector<const Sm90BackwardKernel*> sm90_backward_kernels;

}  // namespace warps
