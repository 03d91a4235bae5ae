// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/sm90_kernel.hpp"

#include "on_host/hopper.hpp"
#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_sm90_, KERNEL_NAME)
#define attention_forward KERNEL_JOINED(attention_forward_sm90_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include "cuda/sm90/forward/forward.cuh"

namespace warps {
namespace {

const Sm90Kernel kernel = {KERNEL_WORD(KERNEL_NAME),
                           KERNEL_PROBLEM,
                           &onepass::forward_features,
                           &onepass::sm90::config,
                           onepass::sm90::kLayout.total,
                           [](const void* maps, const void* params, unsigned grid) {
                             onepass::TensorMap m[5];
                             std::memcpy(m, maps, sizeof m);
                             const auto& p = *static_cast<const onepass::EntropyParams*>(params);
                             gridDim.x = grid;
                             for (unsigned b = 0; b < grid; ++b) {
                               std::memset(smem, 0xff, sizeof smem);
                               hoppers = {};
                               run_block(
                                   onepass::sm90::kGroupThreads * (onepass::sm90::kGroups + 1),
                                   [&] { attention_forward(m[0], m[1], m[2], m[3], m[4], p); }, b);
                               if (!background.empty()) fail("a kernel ended before its loads");
                               for (unsigned i = onepass::sm90::kLayout.total; i < sizeof smem; ++i)
                                 if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                             }
                           }};
[[maybe_unused]] const bool added = (sm90_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
