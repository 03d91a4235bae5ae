// Kernels of src/cuda/sm80, whole, on the host. Structures of the library travel as pointers: each text has its own, of
// the same layout.
#pragma once

namespace warps {

struct KernelText {
  const char* name;
  const char* problem;                             // a line that it is the kernel of
  const void* features;                            // ForwardFeatures
  const void* config;                              // sm80::ForwardConfig
  int shared_bytes;                                // what the library gives a block
  void (*run)(const void* params, unsigned grid);  // ForwardParams
};
extern const KernelText kernel_f32_d40, kernel_f32_d88, kernel_f32_d256, kernel_bf16_d64, kernel_bf16_d128,
    kernel_f16_d59, kernel_bf16_d256;

}  // namespace warps
