// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set; of the
// family backwardjvp by backwardjvp_kernel.inl.
#include "on_host/backwardplain_kernel.hpp"

#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_backwardplain_, KERNEL_NAME)
#define attention_backward_plain_stats KERNEL_JOINED(attention_backward_plain_stats_, KERNEL_NAME)
#define attention_backward_plain_rows KERNEL_JOINED(attention_backward_plain_rows_, KERNEL_NAME)
#define attention_backward_plain_keys KERNEL_JOINED(attention_backward_plain_keys_, KERNEL_NAME)
#define attention_backward_plain_bias KERNEL_JOINED(attention_backward_plain_bias_, KERNEL_NAME)
#define attention_backward_jvp_rows KERNEL_JOINED(attention_backward_jvp_rows_, KERNEL_NAME)
#define attention_backward_jvp_keys KERNEL_JOINED(attention_backward_jvp_keys_, KERNEL_NAME)
#define attention_backward_sums KERNEL_JOINED(attention_backward_sums_plain_, KERNEL_NAME)
#include KERNEL_CONFIG
#include "cuda/attention/backward/sums.cuh"
#include "cuda/backward_plain/bias.cuh"
#include "cuda/backward_plain/keys.cuh"
#include "cuda/backward_plain/rows.cuh"
#include "cuda/backward_plain/stats.cuh"
#if defined(KERNEL_ON_TENSOR_CORES)
#include "cuda/backward_jvp/keys.cuh"
#include "cuda/backward_jvp/rows.cuh"
#endif

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
const onepass::PlainBackwardParams& params_at(const void* p) {
  return *static_cast<const onepass::PlainBackwardParams*>(p);
}
constexpr unsigned kThreads = onepass::kPlainThreads, kBytes = onepass::cuda::backward_plain::kLayout.total;

const PlainBackwardKernel kernel = {
    KERNEL_WORD(KERNEL_NAME),
    KERNEL_PROBLEM,
    &onepass::plain_features,
    &onepass::backward_shape,
    {[](const void* p, unsigned grid) {
       run_grid(grid, kThreads, kThreads / 8, [&] { attention_backward_plain_stats(params_at(p)); });
     },
     [](const void* p, unsigned grid) {
       run_grid(grid, kThreads, kBytes, [&] { attention_backward_plain_rows(params_at(p)); });
     },
     [](const void* p, unsigned grid) {
       run_grid(grid, kThreads, kBytes, [&] { attention_backward_plain_keys(params_at(p)); });
     },
     [](const void* p, unsigned grid) {
       run_grid(grid, kThreads, kBytes, [&] { attention_backward_plain_bias(params_at(p)); });
     },
     [](const void* p, unsigned grid) { run_grid(grid, 32, 0, [&] { attention_backward_sums(params_at(p)); }); }},
#if defined(KERNEL_ON_TENSOR_CORES)
    &onepass::mma::config,
    {[](const void* p, unsigned grid) {
       run_grid(grid, onepass::mma::kThreads, onepass::cuda::backward_jvp::Pass<false>::kLayout.total,
                [&] { attention_backward_jvp_rows(params_at(p)); });
     },
     [](const void* p, unsigned grid) {
       run_grid(grid, onepass::mma::kThreads, onepass::cuda::backward_jvp::Pass<true>::kLayout.total,
                [&] { attention_backward_jvp_keys(params_at(p)); });
     }}
#endif
};
[[maybe_unused]] const bool added = (plain_backward_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
