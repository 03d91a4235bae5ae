// Included with KERNEL_NAME, KERNEL_PROBLEM, KERNEL_FEATURES and KERNEL_CONFIG set, and KERNEL_MASK_MOD if the problem
// has one.
#include "on_host/sm90_text.hpp"

#include "on_host/hopper.hpp"
#include "on_host/words.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_sm90_, KERNEL_NAME)
#define attention_forward KERNEL_JOINED(attention_forward_sm90_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include "cuda/attention/forward.hpp"
namespace onepass {
constexpr ForwardFeatures features = KERNEL_FEATURES;
}
#include "cuda/sm90/forward_config.hpp"
namespace onepass::sm90 {
constexpr ForwardConfig config = KERNEL_CONFIG;
}
#ifdef KERNEL_MASK_MOD
#define ONEPASS_MASK_MOD
#include "cuda/attention/mods.cuh"
namespace onepass::user {
DEV bool mask_mod(i32 batch, i32 head, i32 q_index, i32 k_index, const ModBufferView*) { return KERNEL_MASK_MOD; }
}  // namespace onepass::user
#endif
#include "cuda/sm90/forward.cuh"

namespace warps {

const Sm90Text KERNEL_JOINED(sm90_, KERNEL_NAME) = {
    KERNEL_WORD(KERNEL_NAME),
    KERNEL_PROBLEM,
    &onepass::features,
    &onepass::sm90::config,
    onepass::sm90::kLayout.total,
    [](const void* maps, const void* params, unsigned grid) {
      onepass::TensorMap m[5];
      std::memcpy(m, maps, sizeof m);
      const auto& p = *static_cast<const onepass::ForwardParams*>(params);
      gridDim.x = grid;
      for (unsigned b = 0; b < grid; ++b) {
        std::memset(smem, 0xff, sizeof smem);
        hopper = {};
        run_block(128 * (onepass::sm90::kGroups + 1), [&] { attention_forward(m[0], m[1], m[2], m[3], m[4], p); }, b);
        if (!background.empty()) fail("a kernel ended before its loads");
        for (unsigned i = onepass::sm90::kLayout.total; i < sizeof smem; ++i)
          if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
      }
    }};

}  // namespace warps
