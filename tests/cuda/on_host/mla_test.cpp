// Whole kernels of src/cuda/mla/mla.cuh without a GPU, judged as on one: by the float64 oracle, with poison around
// everything.
#include <gtest/gtest.h>

#include <string>

#include "base/text.hpp"
#include "cuda/mla/mla.hpp"
#include "on_host/boxes.hpp"
#include "on_host/hopper.hpp"
#include "on_host/mla_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

class EmulatedMla : public testing::TestWithParam<const warps::MlaKernel*> {
 protected:
  // The outputs' bytes. CTAs share the work differently for every number of them.
  static std::string run(check::Inputs& inputs, bool early, unsigned blocks) {
    inputs.poison_outputs();
    launch(inputs, inputs.problem, inputs.tensors, early, blocks);
    return output_bytes(inputs);
  }
  static void launch(const check::Inputs&, const Problem& p, const Tensors& tensors, bool early, unsigned blocks) {
    const warps::MlaKernel& kernel = *GetParam();
    const auto& c = *static_cast<const decode::MlaConfig*>(kernel.config);
    decode::Sharing sharing = decode::sharing_of(p, c);
    sharing.min_tiles = 1;
    const decode::Share share = decode::share_of(p, sharing, static_cast<int>(blocks));
    std::vector<unsigned> workspace(decode::workspace_bytes_of(p, sharing, share.blocks) / sizeof(unsigned) + 16,
                                    0xffffffff);
    const std::vector<unsigned> beyond(workspace.end() - 16, workspace.end());
    decode::DecodeParams params = decode::decided_params(p, c, share);
    decode::bind(params, tensors, workspace.data());
    params.min_tiles = 1;
    const cuda::TensorMap map = decode::mla_map(p, c).at(tensors, boxes_of);
    warps::copies_are_early = early;
    warps::backwards = early;
    kernel.run(&map, &params, static_cast<unsigned>(share.blocks * sharing.co_scheduled));
    const auto groups = static_cast<unsigned>(decode::groups_of(p, sharing) * sharing.co_scheduled);
    // Both kernels that merge are right for any number of parts.
    if (share.splits != 1 && !share.whole) kernel.merge(&params, groups * (blocks % 4 + 1), blocks > 4);
    EXPECT_TRUE(std::vector<unsigned>(workspace.end() - 16, workspace.end()) == beyond) << "written past the workspace";
  }
};

TEST_P(EmulatedMla, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  EXPECT_TRUE(*static_cast<const ForwardFeatures*>(GetParam()->features) == cuda::features_of(p));
  EXPECT_TRUE(*static_cast<const decode::MlaConfig*>(GetParam()->config) == decode::select_mla(p).value())
      << "the library takes another config by now";
}

TEST_P(EmulatedMla, IsRightForAnyNumberOfBlocks) {
  unsigned blocks = 1;
  // Not one_hot: the bound of its LSE is too tight for chains of 576 products.
  for (const check::Distribution distribution :
       {check::Distribution::normal, check::Distribution::rising, check::Distribution::huge}) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 2, distribution);
    run(inputs, false, blocks);
    expect_right(inputs, text(check::name_of(distribution), ", ", blocks, " blocks"));
    blocks = blocks * 2 + 1;  // 1, 3, 7
  }
}

TEST_P(EmulatedMla, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 2);
  const std::string late = run(inputs, false, 5);
  EXPECT_TRUE(run(inputs, true, 5) == late);
}

TEST_P(EmulatedMla, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.seqused || p.seq_q == 1) GTEST_SKIP() << "every row of a sequence sees every key";
  // In a key that all rows see, in two of them, in the last one, which few rows see; in many keys; overflows.
  for (const auto& fault : {test::kPokes[0], test::kPokes[1], test::kPokes[3], test::kPokes[4], test::kPokes[8],
                            test::kManyPokes[0], test::kManyPokes[2], test::kManyPokes[8], test::kPokes[10]}) {
    check::Inputs inputs = check::make_inputs(p, 2);
    fault.poke(inputs);
    run(inputs, false, 3);
    expect_right(inputs, fault.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedMla, testing::ValuesIn(warps::mla_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
