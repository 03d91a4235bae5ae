// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/sm80b_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_sm80b_, KERNEL_NAME)
#define attention_backward KERNEL_JOINED(attention_backward_sm80_, KERNEL_NAME)
#define attention_backward_bias KERNEL_JOINED(attention_backward_bias_sm80_, KERNEL_NAME)
#define attention_backward_pre KERNEL_JOINED(attention_backward_pre_sm80_, KERNEL_NAME)
#define attention_backward_post KERNEL_JOINED(attention_backward_post_sm80_, KERNEL_NAME)
#define attention_backward_sums KERNEL_JOINED(attention_backward_sums_sm80_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/sm80/backward/backward.cuh"
#include "cuda/sm80/backward/bias.cuh"
// After the family's sum_tile.
#include "cuda/attention/backward/post.cuh"
#include "cuda/attention/backward/pre.cuh"
#include "cuda/attention/backward/sums.cuh"

namespace warps {
namespace {

// CTAs one after the other, each with its shared memory poisoned and watched beyond `bytes`.
template <class Body>
void run_grid(unsigned grid, unsigned threads, unsigned bytes, const Body& body) {
  gridDim.x = grid;
  for (unsigned b = 0; b < grid; ++b) {
    std::memset(smem, 0xff, sizeof smem);
    run_block(threads, body, b);
    for (unsigned i = bytes; i < sizeof smem; ++i)
      if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
  }
}
const onepass::BackwardParams& params_at(const void* p) { return *static_cast<const onepass::BackwardParams*>(p); }

const Sm80BackwardKernel kernel = {
    KERNEL_WORD(KERNEL_NAME),
    KERNEL_PROBLEM,
    &onepass::backward_features,
    &onepass::backward_shape,
    &onepass::sm80::config,
    onepass::sm80::kLayout.total,
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::kPreThreads, 4 * onepass::kPreThreads, [&] { attention_backward_pre(params_at(p)); });
    },
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::sm80::kThreads, onepass::sm80::kLayout.total, [&] { attention_backward(params_at(p)); });
    },
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::sm80::kThreads, onepass::sm80::kLayout.total,
               [&] { attention_backward_bias(params_at(p)); });
    },
    [](const void* p, unsigned grid) {
      run_grid(grid, onepass::kPostThreads, onepass::kRepairBytes, [&] { attention_backward_post(params_at(p)); });
    },
    [](const void* p, unsigned grid) { run_grid(grid, 32, 0, [&] { attention_backward_sums(params_at(p)); }); }};
[[maybe_unused]] const bool added = (sm80_backward_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
