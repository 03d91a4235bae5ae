// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM, KERNEL_CONFIG and KERNEL_FILE set.
#include "on_host/sm90b_kernel.hpp"

#include "on_host/hopper.hpp"
#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_sm90b_, KERNEL_NAME)
#define attention_backward KERNEL_JOINED(attention_backward_sm90_, KERNEL_NAME)
#define attention_backward_pre KERNEL_JOINED(attention_backward_pre_sm90_, KERNEL_NAME)
#define attention_backward_post KERNEL_JOINED(attention_backward_post_sm90_, KERNEL_NAME)
#define attention_backward_sums KERNEL_JOINED(attention_backward_sums_sm90_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include KERNEL_FILE
#include "cuda/sm90/backward/sums.cuh"
// After the family's sum_tile.
#include "cuda/attention/backward/post.cuh"
#include "cuda/attention/backward/pre.cuh"
#include "cuda/attention/backward/sums.cuh"

namespace warps {
namespace {

// Clusters of CTAs one after the other, each with its shared memory poisoned and watched beyond `bytes`.
template <class Body>
void run_grid(unsigned grid, unsigned threads, unsigned bytes, const Body& body, unsigned cluster = 1) {
  gridDim.x = grid;
  for (unsigned b = 0; b < grid; b += cluster) {
    std::memset(smem, 0xff, sizeof smem);
    hoppers = {};
    run_block(threads, body, b, cluster);
    if (!background.empty()) fail("a kernel ended before its loads");
    for (std::size_t i = 0; i < sizeof smem; ++i)
      if (i % kSharedBytes >= bytes && smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
  }
}
const onepass::BackwardParams& params_at(const void* p) { return *static_cast<const onepass::BackwardParams*>(p); }

const Sm90BackwardKernel kernel = {
    KERNEL_WORD(KERNEL_NAME),
    KERNEL_PROBLEM,
    &onepass::backward_features,
    &onepass::backward_shape,
    &onepass::sm90::config,
    onepass::sm90::kLayout.total,
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::kPreThreads, 4 * onepass::kPreThreads, [&] { attention_backward_pre(params_at(p)); });
    },
    [](const void* maps, const void* p, unsigned grid) {
      onepass::TensorMap m[6];
      std::memcpy(m, maps, sizeof m);
      run_grid(
          grid, onepass::sm90::kThreads, onepass::sm90::kLayout.total,
          [&] { attention_backward(m[0], m[1], m[2], m[3], m[4], m[5], params_at(p)); },
          onepass::sm90::config.paired ? 2 : 1);
    },
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::kPostThreads, onepass::kRepairBytes, [&] { attention_backward_post(params_at(p)); });
    },
    [](const void* p, unsigned grid) { run_grid(grid, 32, 0, [&] { attention_backward_sums(params_at(p)); }); }};
[[maybe_unused]] const bool added = (sm90_backward_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
