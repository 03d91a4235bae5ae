// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM, KERNEL_FILE and KERNEL_CONFIG set.
#include "on_host/gemm_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_gemm_, KERNEL_NAME)
#define flat_gemm KERNEL_JOINED(flat_gemm_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/gemm/flat_gemm.cuh"

namespace warps {
namespace {

const GemmKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, &onepass::gemm_config,
                           [](const void* params, unsigned blocks, int shared_bytes) {
                             const auto& p = *static_cast<const onepass::FlatGemmParams*>(params);
                             gridDim.x = blocks;
                             for (unsigned b = 0; b < blocks; ++b) {
                               std::memset(smem, 0xff, sizeof smem);
                               run_block(onepass::kGemmThreads, [&] { flat_gemm(p); }, b);
                               for (unsigned i = static_cast<unsigned>(shared_bytes); i < sizeof smem; ++i)
                                 if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                             }
                           }};
[[maybe_unused]] const bool added = (gemm_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
