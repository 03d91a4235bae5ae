// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/sm80_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_sm80_, KERNEL_NAME)
#define attention_forward KERNEL_JOINED(attention_forward_sm80_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/sm80/forward/forward.cuh"

namespace warps {
namespace {

const Sm80Kernel kernel = {KERNEL_WORD(KERNEL_NAME),
                           KERNEL_PROBLEM,
                           &onepass::forward_features,
                           &onepass::sm80::config,
                           onepass::sm80::kLayout.total,
                           [](const void* params, unsigned grid) {
                             const auto& p = *static_cast<const onepass::EntropyParams*>(params);
                             gridDim.x = grid;
                             for (unsigned b = 0; b < grid; ++b) {
                               std::memset(smem, 0xff, sizeof smem);
                               run_block(onepass::sm80::kThreads, [&] { attention_forward(p); }, b);
                               for (unsigned i = onepass::sm80::kLayout.total; i < sizeof smem; ++i)
                                 if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                             }
                           }};
[[maybe_unused]] const bool added = (sm80_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
