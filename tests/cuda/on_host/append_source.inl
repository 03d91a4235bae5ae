// Included with EMULATED_NAME and EMULATED_CONFIG set.
#include "on_host/append_source.hpp"

#include "on_host/intrinsics.hpp"

#define EMULATED_PASTED(a, b) a##b
#define EMULATED_JOINED(a, b) EMULATED_PASTED(a, b)
#define onepass EMULATED_JOINED(emulated_append_, EMULATED_NAME)
#define append_kv EMULATED_JOINED(append_kv_, EMULATED_NAME)
#include "cuda/append/append.hpp"
namespace onepass {
constexpr AppendConfig append_config = EMULATED_CONFIG;
}
#include "cuda/append/append.cuh"

namespace warps {

const AppendSource EMULATED_JOINED(append_, EMULATED_NAME) = {
    &onepass::append_config, [](const void* params, unsigned blocks) {
      const auto& p = *static_cast<const onepass::AppendParams*>(params);
      gridDim.x = blocks;
      for (unsigned b = 0; b < blocks; ++b) run_block(onepass::kAppendThreads, [&] { append_kv(p); }, b);
    }};

}  // namespace warps
