// Whole backward passes of src/cuda/sm90 without a GPU: every kernel of a call, judged by the float64 oracle.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cuda/sm90/backward/backward.hpp"
#include "on_host/boxes.hpp"
#include "on_host/sm90b_kernel.hpp"
#include "on_host/whole_backward.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

constexpr std::uint64_t kSeed = 2;  // an even one: rows lie as TMA wants them

class EmulatedHopperBackward : public testing::TestWithParam<const warps::Sm90BackwardKernel*> {
 protected:
  static const BackwardFeatures& features() { return *static_cast<const BackwardFeatures*>(GetParam()->features); }
  static const BackwardShape& shape() { return *static_cast<const BackwardShape*>(GetParam()->shape); }
  static const sm90::BackwardConfig& config() { return *static_cast<const sm90::BackwardConfig*>(GetParam()->config); }

  // The outputs' bytes.
  static std::string run(check::Inputs& inputs, bool early, bool all_mixed = false, std::int64_t* turns = nullptr) {
    const warps::Sm90BackwardKernel& kernel = *GetParam();
    const Problem& p = inputs.problem;
    EmulatedCall call(inputs, features(), shape(), early, all_mixed);
    BackwardParams& params = call.params;
    std::string bytes = call.run(kernel, [&] {
      sm90::set_head_groups(params, p, config(), 2, 50 << 20);
      if (features().dbias && !sm90::writes_all_dbias(features(), config()))
        std::memset(params.dbias, 0, inputs.buffer(Role::dbias).bytes());
      const sm90::BackwardMaps maps = sm90::maps_of(sm90::map_shapes(p, config()), inputs.tensors, boxes_of);
      // One CTA where tiles wait for each other: blocks run one after the other here.
      const std::int64_t most = features().deterministic ? 1 : 3, tiles = sm90::tiles_of(p, config());
      const unsigned cluster = config().paired ? 2 : 1;
      if (tiles > 0) kernel.run(&maps, &params, cluster * static_cast<unsigned>(std::min(tiles, most)));
    });
    if (turns != nullptr) *turns = call.turns();
    return bytes;
  }
};

TEST_P(EmulatedHopperBackward, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  EXPECT_TRUE(features() == cuda::backward_features_of(p));
  sm90::BackwardConfig chosen = sm90::select_config(p, features()).value();
  chosen.guarded = chosen.careful = config().careful;  // as with more work, in a call that needs care
  chosen.zeroes = sm90::may_zero(p, features(), chosen);
  EXPECT_TRUE(config() == chosen) << "the library takes another config by now";
  EXPECT_TRUE(shape() == sm90::shape_of(p, chosen));
  EXPECT_EQ(GetParam()->shared_bytes, sm90::layout_of(features(), chosen).total);
}

TEST_P(EmulatedHopperBackward, IsRight) {
  const Problem p = parse_problem(GetParam()->problem);
  for (const check::Distribution distribution : check::kDistributions) {
    if (!check::can_judge(p, distribution)) continue;
    check::Inputs inputs = check::make_inputs(p, kSeed, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedHopperBackward, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), kSeed);
  const std::string late = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == late);
  if (!config().paired) return;
  for (const int first : {0, 1}) {
    warps::ahead = first;
    EXPECT_TRUE(run(inputs, true) == late) << "block " << first << " ahead";
  }
  warps::ahead = -1;
}

TEST_P(EmulatedHopperBackward, AnOffsetMovesTheBand) {
  expect_right_where_the_band_moves(parse_problem(GetParam()->problem), kSeed,
                                    [](check::Inputs& inputs) { run(inputs, false); });
}

TEST_P(EmulatedHopperBackward, NaNAndInfinityReachOnlyWhatSeesThem) {
  const Problem p = parse_problem(GetParam()->problem);
  const AttentionFeatures& a = features().forward.attention;
  if (p.varlen) GTEST_SKIP() << "the places of the faults are those of sequences of one length";
  if (!a.bounded_right && !a.masks()) GTEST_SKIP() << "every row sees every key";
  const auto expect_right_with = [&](const test::Poke& poke) {
    check::Inputs inputs = check::make_inputs(p, kSeed);
    poke.poke(inputs);
    inputs.changed();
    run(inputs, false);
    expect_right(inputs, poke.name);
  };
  for (const std::size_t i : {0, 8}) expect_right_with(test::kPokes[i]);  // in V, in the last row of K
  if (!config().careful) return;
  expect_right_with(test::kPokes[9]);  // NaN in Q
  for (const test::Poke& poke : test::kUpstreamPokes) expect_right_with(poke);
  for (const std::size_t i : {1, 8}) expect_right_with(test::kManyPokes[i]);          // V, Q
  for (const std::size_t i : {0, 2}) expect_right_with(test::kManyUpstreamPokes[i]);  // dO
}

TEST_P(EmulatedHopperBackward, KeysWithoutQueryHeadsHaveGradientsOfZero) {
  Problem p = parse_problem(GetParam()->problem);
  p.heads_q = 0;
  set_contiguous(p);
  check::Inputs inputs = check::make_inputs(p, kSeed);
  run(inputs, false);
  expect_right(inputs, "no query heads");
}

// Blocks of rows that no key of a tile is seen by are left out, tiles that no row sees are settled.
TEST_P(EmulatedHopperBackward, WhatMasksEmptyIsLeftOut) {
  if (!features().forward.attention.bool_mask) GTEST_SKIP() << "no mask";
  for (const test::MaskPattern& pattern : test::kMaskPatterns) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), kSeed);
    test::fill_mask(inputs.tensors.bool_mask, pattern);
    inputs.changed();
    run(inputs, false);
    expect_right(inputs, pattern.name);
  }
}

TEST_P(EmulatedHopperBackward, TilesThatAreLeftOutChangeNoBit) {
  if (shape().turn_keys == 0) GTEST_SKIP() << "no mask, or sums in any order";
  expect_the_bits_of_all_tiles(
      parse_problem(GetParam()->problem), kSeed,
      [](check::Inputs& inputs, bool all_mixed, std::int64_t& turns) { return run(inputs, false, all_mixed, &turns); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedHopperBackward, testing::ValuesIn(warps::sm90_backward_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
