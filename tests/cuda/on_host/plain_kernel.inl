// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/plain_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_plain_, KERNEL_NAME)
#define attention_plain KERNEL_JOINED(attention_plain_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/plain/plain.cuh"

namespace warps {
namespace {

const PlainKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, &onepass::forward_features,
                            [](const void* params, unsigned grid) {
                              const auto& p = *static_cast<const onepass::PlainParams*>(params);
                              gridDim.x = grid;
                              for (unsigned b = 0; b < grid; ++b)
                                run_block(32 * onepass::kPlainWarps, [&] { attention_plain(p); }, b);
                            }};
[[maybe_unused]] const bool added = (plain_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
