// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/decode_kernel.hpp"

#include "on_host/hopper.hpp"
#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_decode_, KERNEL_NAME)
#define attention_decode KERNEL_JOINED(attention_decode_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include "cuda/decode/decode.cuh"

namespace warps {
namespace {

const DecodeKernel kernel = {KERNEL_WORD(KERNEL_NAME),
                             KERNEL_PROBLEM,
                             &onepass::forward_features,
                             &onepass::mma::config,
                             onepass::decode::kLayout.total,
                             [](const void* params, unsigned grid) {
                               const auto& p = *static_cast<const onepass::decode::KernelParams*>(params);
                               gridDim.x = grid;
                               for (unsigned i = 0; i < grid; ++i) {
                                 const unsigned b = backwards ? grid - 1 - i : i;
                                 std::memset(smem, 0xff, sizeof smem);
                                 hoppers = {};
                                 run_block(onepass::mma::config.all_threads(), [&] { attention_decode(p); }, b);
                                 if (!background.empty()) fail("a kernel ended before its copies");
                                 for (unsigned at = onepass::decode::kLayout.total; at < sizeof smem; ++at)
                                   if (smem[at] != 0xff) fail("a kernel wrote beyond its shared memory");
                               }
                             }};
[[maybe_unused]] const bool added = (decode_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
