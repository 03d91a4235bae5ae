// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/blockmask_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_block_mask_, KERNEL_NAME)
#define buffer_levels KERNEL_JOINED(buffer_levels_, KERNEL_NAME)
#define mask_tiles KERNEL_JOINED(mask_tiles_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/block_mask/levels.cuh"
#include "cuda/block_mask/tiles.cuh"

namespace warps {
namespace {

template <auto kernel, class Params>
void run(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  gridDim.x = 2;  // each takes several units
  for (unsigned b = 0; b < gridDim.x; ++b) run_block(onepass::kBlockMaskThreads, [&] { kernel(p); }, b);
}
const BlockMaskKernel kernel = {KERNEL_WORD(KERNEL_NAME), KERNEL_PROBLEM, run<buffer_levels, onepass::LevelParams>,
                                run<mask_tiles, onepass::BlockMaskParams>};
[[maybe_unused]] const bool added = (block_mask_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
