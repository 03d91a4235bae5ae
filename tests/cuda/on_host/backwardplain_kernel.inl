// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set; of the
// families backwardjvp and backwardjvpsm90 by their own files.
#include "on_host/backwardplain_kernel.hpp"

#include "on_host/hopper.hpp"
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
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include "cuda/attention/backward/sums.cuh"
#include "cuda/backward_plain/bias.cuh"
#include "cuda/backward_plain/keys.cuh"
#include "cuda/backward_plain/rows.cuh"
#include "cuda/backward_plain/stats.cuh"
#if defined(KERNEL_ON_TENSOR_CORES)
#include "cuda/backward_jvp/keys.cuh"
#include "cuda/backward_jvp/rows.cuh"
#elif defined(KERNEL_ON_HOPPER)
#include "cuda/backward_jvp/sm90/keys.cuh"
#include "cuda/backward_jvp/sm90/rows.cuh"
#endif

namespace warps {
namespace {

// CTAs one after the other, each with its shared memory poisoned and watched beyond `bytes`.
template <class Body>
void run_grid(unsigned grid, unsigned threads, unsigned bytes, const Body& body) {
  gridDim.x = grid;
  for (unsigned b = 0; b < grid; ++b) {
    std::memset(smem, 0xff, sizeof smem);
    hoppers = {};
    run_block(threads, body, b);
    if (!background.empty()) fail("a kernel ended before its loads");
    for (unsigned i = bytes; i < sizeof smem; ++i)
      if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
  }
}
const onepass::PlainBackwardParams& params_at(const void* p) {
  return *static_cast<const onepass::PlainBackwardParams*>(p);
}
constexpr unsigned kThreads = onepass::kPlainThreads, kBytes = onepass::cuda::backward_plain::kLayout.total;

#if defined(KERNEL_ON_HOPPER)
namespace hopper_jvp = onepass::cuda::backward_jvp::sm90;
hopper_jvp::Maps maps_at(const void* boxes) {
  hopper_jvp::Maps maps;
  std::memcpy(&maps, boxes, sizeof maps);
  return maps;
}
#endif

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
    SecondFamily::tiles,
    &onepass::mma::config,
    onepass::mma::config.held(),
    {[](const void*, const void* p, unsigned grid) {
       run_grid(grid, onepass::mma::kThreads, onepass::cuda::backward_jvp::Pass<false>::kLayout.total,
                [&] { attention_backward_jvp_rows(params_at(p)); });
     },
     [](const void*, const void* p, unsigned grid) {
       run_grid(grid, onepass::mma::kThreads, onepass::cuda::backward_jvp::Pass<true>::kLayout.total,
                [&] { attention_backward_jvp_keys(params_at(p)); });
     }}
#elif defined(KERNEL_ON_HOPPER)
    SecondFamily::hopper,
    &hopper_jvp::config,
    hopper_jvp::Config::held(),
    {[](const void* maps, const void* p, unsigned grid) {
       run_grid(grid, hopper_jvp::Config::threads(), hopper_jvp::Pass<false>::kLayout.total,
                [&] { attention_backward_jvp_rows(maps_at(maps), params_at(p)); });
     },
     [](const void* maps, const void* p, unsigned grid) {
       run_grid(grid, hopper_jvp::Config::threads(), hopper_jvp::Pass<true>::kLayout.total,
                [&] { attention_backward_jvp_keys(maps_at(maps), params_at(p)); });
     }}
#endif
};
[[maybe_unused]] const bool added = (plain_backward_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
