// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/jvp_kernel.hpp"

#include "on_host/hopper.hpp"
#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_jvpsm90_, KERNEL_NAME)
#define attention_jvp KERNEL_JOINED(attention_jvp_sm90_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include "cuda/jvp/sm90/jvp.cuh"

namespace warps {
namespace {

const JvpKernel kernel = {KERNEL_WORD(KERNEL_NAME),
                          KERNEL_PROBLEM,
                          &onepass::jvp_features,
                          JvpFamily::hopper,
                          &onepass::cuda::jvp::sm90::config,
                          onepass::cuda::jvp::sm90::kLayout.total,
                          [](const void* boxes, const void* params, unsigned grid) {
                            onepass::cuda::jvp::sm90::Maps maps;
                            std::memcpy(&maps, boxes, sizeof maps);
                            const auto& p = *static_cast<const onepass::JvpParams*>(params);
                            gridDim.x = grid;
                            for (unsigned b = 0; b < grid; ++b) {
                              std::memset(smem, 0xff, sizeof smem);
                              hoppers = {};
                              run_block(onepass::cuda::jvp::sm90::config.threads(), [&] { attention_jvp(maps, p); }, b);
                              if (!background.empty()) fail("a kernel ended before its loads");
                              for (unsigned i = onepass::cuda::jvp::sm90::kLayout.total; i < sizeof smem; ++i)
                                if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                            }
                          }};
[[maybe_unused]] const bool added = (jvp_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
