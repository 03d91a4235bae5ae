// The kernels of block masks without a GPU: the states of tiles are those of the builder for the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/block_mask/host.hpp"
#include "on_host/blockmask_kernel.hpp"
#include "support/mask_buffers.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

using Kernel = warps::BlockMaskKernel;

std::vector<std::int32_t> states_of(const Kernel& kernel, const std::vector<NamedTensor>& buffers,
                                    const BlockMaskShape& s, bool exact) {
  const std::int64_t padded = s.key_tiles() + 3;  // between rows, which nothing may write
  std::vector<std::int32_t> memory(static_cast<std::size_t>(s.batch * s.heads * s.row_tiles() * padded), -7);
  const Tensor states(memory.data(), DType::i32, {s.batch, s.heads, s.row_tiles(), s.key_tiles()},
                      {s.heads * s.row_tiles() * padded, s.row_tiles() * padded, padded, 1});
  const cuda::BlockMaskCall call{buffers, s, states, exact};
  std::vector<unsigned char> levels(cuda::level_bytes(buffers, s) + 64, 0xff);  // NaN
  LevelParams level_params = cuda::level_params(call, levels.data());
  cuda::launch_levels(call, level_params, [&](const LevelParams& p) { kernel.levels(&p); });
  EXPECT_TRUE(std::all_of(levels.end() - 64, levels.end(), [](unsigned char x) { return x == 0xff; }));
  const BlockMaskParams params = cuda::block_mask_params(call, level_params);
  if (states.elements() > 0) kernel.tiles(&params);
  std::vector<std::int32_t> found;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (static_cast<std::int64_t>(i) % padded < s.key_tiles())
      found.push_back(memory[i]);
    else
      EXPECT_EQ(memory[i], -7);
  }
  return found;
}

// Buffers of two or three dimensions of which no groups are kept, and more rows than are joined.
std::vector<ModBuffer> enlarged(std::vector<ModBuffer> specs) {
  for (ModBuffer& b : specs) {
    if (b.rank < 2) continue;
    const std::int64_t rows = interval::kMostRows + 6, between = b.rank == 3 ? b.shape[1] : 1;
    b.shape[0] = rows, b.shape[static_cast<std::size_t>(b.rank - 1)] = (std::int64_t{1} << 21) / (rows * between) + 1;
  }
  return specs;
}

class EmulatedBlockMask : public testing::TestWithParam<const Kernel*> {
 protected:
  const Kernel& kernel() const { return *GetParam(); }
  Problem problem_ = parse_problem(GetParam()->problem);
  // Random programs shift and divide by any number, which C++ leaves undefined: their elements are not compared.
  bool exact_ = std::string(GetParam()->name).find("random") == std::string::npos;

  // The tiles of the CPU's builder that bounds decide, and those that they leave open. looser: bounds may decide fewer.
  void compare(const std::vector<NamedTensor>& buffers, const BlockMaskShape& s, bool looser = false) {
    for (const bool exact : {false, true}) {
      if (exact && !exact_) continue;
      auto want = block_mask(problem_.mask_mod, buffers, s, exact).states();
      const auto found = states_of(kernel(), buffers, s, exact);
      for (std::size_t i = 0; looser && !exact && i < want.size(); ++i)
        if (found[i] == 1) want[i] = 1;
      EXPECT_EQ(want, found) << s.seq_q << " x " << s.seq_k << ", tiles of " << s.tile_q << " x " << s.tile_k
                             << (exact ? ", exact" : "");
      for (const std::int32_t state : found) (state == 1 ? open_ : decided_) += 1;
    }
  }
  int decided_ = 0, open_ = 0;
};

TEST_P(EmulatedBlockMask, HasTheTilesOfTheCpu) {
  std::mt19937 random(5);
  for (const test::MaskContents contents : {test::MaskContents::runs, test::MaskContents::any}) {
    const test::MaskBuffers buffers(problem_.mod_buffers, contents, random);
    const std::int64_t b = problem_.batch, h = problem_.heads_q;
    for (const BlockMaskShape& s : {BlockMaskShape{b, h, 330, 300, 16, 16},
                                    {b, h, 330, 300, 128, 128},
                                    {b, h, 150, 1100, 33, 7},
                                    {b, h, 1, 300, 128, 1},
                                    {b, 1, 129, 129, 128, 128},
                                    {b, h, 0, 300, 16, 16},
                                    {b, h, 300, 0, 16, 16}})
      compare(buffers.tensors(), s);
  }
  if (const auto specs = enlarged(problem_.mod_buffers); specs != problem_.mod_buffers) {
    const test::MaskBuffers buffers(specs, test::MaskContents::runs, random);
    compare(buffers.tensors(), {1, 1, 140, 130, 128, 16}, true);
  }
  EXPECT_GT(decided_, 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedBlockMask, testing::ValuesIn(warps::block_mask_kernels),
                         [](const auto& kernel) { return kernel.param->name; });

}  // namespace
}  // namespace onepass
