// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/plain_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_plaingemm_, KERNEL_NAME)
#define plain_gemm KERNEL_JOINED(plain_gemm_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/gemm/plain_gemm.cuh"

namespace warps {
namespace {

const PlainKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, &onepass::plain_gemm_config,
                            [](const void* params, unsigned grid) {
                              const auto& p = *static_cast<const onepass::PlainGemmParams*>(params);
                              gridDim.x = grid;
                              for (unsigned b = 0; b < grid; ++b) {
                                std::memset(smem, 0xff, sizeof smem);
                                run_block(onepass::kPlainGemmTile * onepass::kPlainGemmTile, [&] { plain_gemm(p); }, b);
                                for (unsigned i = onepass::kPlainGemmShared; i < sizeof smem; ++i)
                                  if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                              }
                            }};
[[maybe_unused]] const bool added = (plain_gemm_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
