// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM, KERNEL_FILE and KERNEL_CONFIG set.
#include "on_host/rows_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#ifndef KERNEL_FAMILY
#define KERNEL_FAMILY rows_
#endif
#define onepass KERNEL_JOINED(emulated_, KERNEL_JOINED(KERNEL_FAMILY, KERNEL_NAME))
#define softmax_rows KERNEL_JOINED(softmax_, KERNEL_JOINED(KERNEL_FAMILY, KERNEL_NAME))
#define softmax_rows_backward softmax_rows
#include KERNEL_CONFIG
#include KERNEL_FILE

namespace warps {
namespace {

const RowsKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, &onepass::softmax_config,
                           [](const void* params, unsigned blocks) {
                             const auto& p = *static_cast<const onepass::SoftmaxParams*>(params);
                             gridDim.x = blocks;
                             for (unsigned b = 0; b < blocks; ++b) {
                               std::memset(smem, 0xff, sizeof smem);
                               run_block(onepass::kC.block(), [&] { softmax_rows(p); }, b);
                               for (unsigned i = onepass::kC.shared_bytes(); i < sizeof smem; ++i)
                                 if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                             }
                           }};
[[maybe_unused]] const bool added = (rows_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
