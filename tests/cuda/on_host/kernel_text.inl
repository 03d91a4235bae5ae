// Included with KERNEL_NAME, KERNEL_PROBLEM, KERNEL_FEATURES, KERNEL_CONFIG and KERNEL_PRODUCTS set.
#include "on_host/kernel_text.hpp"

#include "on_host/words.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_kernel_, KERNEL_NAME)
#define attention_forward KERNEL_JOINED(attention_forward_, KERNEL_NAME)
#include "cuda/sm80/forward_config.hpp"
namespace onepass {
constexpr ForwardFeatures features = KERNEL_FEATURES;
namespace sm80 {
constexpr ForwardConfig config = KERNEL_CONFIG;
}
}  // namespace onepass
#include KERNEL_PRODUCTS
#include "cuda/sm80/forward.cuh"

namespace warps {

const KernelText KERNEL_JOINED(kernel_, KERNEL_NAME) = {
    KERNEL_WORD(KERNEL_NAME),
    KERNEL_PROBLEM,
    &onepass::features,
    &onepass::sm80::config,
    onepass::sm80::kLayout.total,
    [](const void* params, unsigned grid) {
      const auto& p = *static_cast<const onepass::ForwardParams*>(params);
      gridDim.x = grid;
      for (unsigned b = 0; b < grid; ++b) {
        std::memset(smem, 0xff, sizeof smem);
        run_block(onepass::sm80::kThreads, [&] { attention_forward(p); }, b);
        for (unsigned i = onepass::sm80::kLayout.total; i < sizeof smem; ++i)
          if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
      }
    }};

}  // namespace warps
