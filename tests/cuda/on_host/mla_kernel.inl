// Included by the files that print_kernels writes, with KERNEL_NAME, KERNEL_PROBLEM and KERNEL_CONFIG set.
#include "on_host/mla_kernel.hpp"

#include "on_host/hopper.hpp"
#include "on_host/intrinsics.hpp"

#define KERNEL_QUOTED(a) #a
#define KERNEL_WORD(a) KERNEL_QUOTED(a)
#define KERNEL_PASTED(a, b) a##b
#define KERNEL_JOINED(a, b) KERNEL_PASTED(a, b)
#define onepass KERNEL_JOINED(emulated_mla_, KERNEL_NAME)
#define attention_mla KERNEL_JOINED(attention_mla_, KERNEL_NAME)
#define attention_mla_merge KERNEL_JOINED(attention_mla_merge_, KERNEL_NAME)
#define attention_mla_merge_many KERNEL_JOINED(attention_mla_merge_many_, KERNEL_NAME)
#define __trap() ::warps::fail("__trap")
#include KERNEL_CONFIG
#include "cuda/mla/merge.cuh"
#include "cuda/mla/mla.cuh"

namespace warps {
namespace {

const MlaKernel kernel = {KERNEL_WORD(KERNEL_NAME),
                          KERNEL_PROBLEM,
                          &onepass::forward_features,
                          &onepass::decode::config,
                          [](const void* map, const void* params, unsigned grid) {
                            onepass::TensorMap m;
                            std::memcpy(&m, map, sizeof m);
                            const auto& p = *static_cast<const onepass::decode::DecodeParams*>(params);
                            gridDim.x = grid;
                            for (unsigned b = 0; b < grid; ++b) {
                              std::memset(smem, 0xff, sizeof smem);
                              hoppers = {};
                              run_block(onepass::decode::kMlaThreads, [&] { attention_mla(m, p); }, b);
                              if (!background.empty()) fail("a kernel ended before its loads");
                              for (unsigned i = onepass::decode::kLayout.total; i < sizeof smem; ++i)
                                if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                            }
                          },
                          [](const void* params, unsigned grid, bool many) {
                            const auto& p = *static_cast<const onepass::decode::DecodeParams*>(params);
                            gridDim.x = grid;
                            for (unsigned b = 0; b < grid; ++b) {
                              std::memset(smem, 0xff, sizeof smem);
                              hoppers = {};
                              const auto merge = [&] { many ? attention_mla_merge_many(p) : attention_mla_merge(p); };
                              run_block(onepass::decode::kMlaMergeThreads, merge, b);
                              for (unsigned i = onepass::decode::kMlaMergeBytes; i < sizeof smem; ++i)
                                if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
                            }
                          }};
[[maybe_unused]] const bool added = (mla_kernels.push_back(&kernel), true);

}  // namespace
}  // namespace warps
