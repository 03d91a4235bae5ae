// Kernels of src/cuda/sm90, whole, on the host. Structures of the library travel as pointers: each text has its own, of
// the same layout.
#pragma once

namespace warps {

struct Sm90Text {
  const char* name;
  const char* problem;   // a line that it is the kernel of
  const void* features;  // ForwardFeatures
  const void* config;    // sm90::ForwardConfig
  int shared_bytes;      // what the library gives a block
  // maps: five tensor maps that hold TensorBoxes (hopper.hpp): q, k, v, out, bias; ForwardParams.
  void (*run)(const void* maps, const void* params, unsigned grid);
};
extern const Sm90Text sm90_d64, sm90_d64_bias, sm90_d64_bias_causal, sm90_d64_softcap, sm90_d64_mods, sm90_d40_window,
    sm90_d96_packed, sm90_d128_three_groups, sm90_d128_softcap, sm90_d128_mask, sm90_d128_bias, sm90_d128_bias_mask,
    sm90_d128_bias_unstaged, sm90_d128_80_bias_fp32, sm90_d192_128, sm90_d256_dropout;

}  // namespace warps
