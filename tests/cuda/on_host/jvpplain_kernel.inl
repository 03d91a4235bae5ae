// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/jvp_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_jvpplain_, KERNEL_NAME)
#define attention_jvp_plain KERNEL_JOINED(attention_jvp_plain_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/jvp/plain.cuh"

namespace warps {
namespace {

const JvpKernel kernel = {KERNEL_WORD(KERNEL_NAME),
                          KERNEL_PROBLEM,
                          &onepass::jvp_features,
                          JvpFamily::plain,
                          nullptr,
                          0,
                          [](const void*, const void* params, unsigned grid) {
                            const auto& p = *static_cast<const onepass::JvpParams*>(params);
                            gridDim.x = grid;
                            for (unsigned b = 0; b < grid; ++b)
                              run_block(32 * onepass::kJvpPlainWarps, [&] { attention_jvp_plain(p); }, b);
                          }};
[[maybe_unused]] const bool added = (jvp_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
