// Included with EMULATED_NAME, EMULATED_DIM, EMULATED_INPUT, EMULATED_OUTPUT and EMULATED_CAPACITY set, and the words
// of the two types in EMULATED_IN and EMULATED_OUT.
#include "on_host/merge_source.hpp"

#include "on_host/intrinsics.hpp"

#define EMULATED_PASTED(a, b) a##b
#define EMULATED_JOINED(a, b) EMULATED_PASTED(a, b)
#define onepass EMULATED_JOINED(emulated_merge_, EMULATED_NAME)
#include "cuda/merge/merge_params.hpp"
namespace onepass {
constexpr MergeConfig merge_config = {.dim = EMULATED_DIM,
                                      .input = ScalarType::EMULATED_INPUT,
                                      .output = ScalarType::EMULATED_OUTPUT,
                                      .capacity = EMULATED_CAPACITY};
}
#define merge_parts EMULATED_JOINED(merge_parts_, EMULATED_NAME)
#include "cuda/merge/merge.cuh"

namespace warps {

const MergeSource EMULATED_JOINED(merge_, EMULATED_NAME) = {
    EMULATED_DIM, onepass::kAtOnce, EMULATED_IN, EMULATED_OUT, [](const void* params, unsigned blocks) {
      const auto& p = *static_cast<const onepass::MergeCall*>(params);
      gridDim.x = blocks;
      for (unsigned b = 0; b < blocks; ++b) run_block(onepass::kMergeThreads, [&] { merge_parts(p); }, b);
    }};

}  // namespace warps
