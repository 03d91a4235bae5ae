// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/mod_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_mod_, KERNEL_NAME)
#define pack_mod KERNEL_JOINED(pack_mod_, KERNEL_NAME)
#define pack_mask KERNEL_JOINED(pack_mask_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/attention/scores/mod_bits.cuh"

namespace warps {
namespace {

const ModKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, [](const void* params) {
                            const auto& p = *static_cast<const onepass::ModPackParams*>(params);
                            gridDim.x = 3;
                            for (unsigned b = 0; b < gridDim.x; ++b) run_block(256, [&] { pack_mod(p); }, b);
                          }};
[[maybe_unused]] const bool added = (mod_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
