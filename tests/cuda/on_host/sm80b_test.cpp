// Whole backward passes of src/cuda/sm80 without a GPU: every kernel of a call, judged by the float64 oracle.
#include <gtest/gtest.h>

#include <string>

#include "cuda/sm80/backward/backward.hpp"
#include "on_host/shared_bytes.hpp"
#include "on_host/sm80b_kernel.hpp"
#include "on_host/whole_backward.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

class EmulatedBackward : public testing::TestWithParam<const warps::Sm80BackwardKernel*> {
 protected:
  static const BackwardFeatures& features() { return *static_cast<const BackwardFeatures*>(GetParam()->features); }
  static const BackwardShape& shape() { return *static_cast<const BackwardShape*>(GetParam()->shape); }
  static const sm80::BackwardConfig& config() { return *static_cast<const sm80::BackwardConfig*>(GetParam()->config); }

  // The outputs' bytes.
  static std::string run(check::Inputs& inputs, bool early, bool all_mixed = false, std::int64_t* turns = nullptr) {
    const warps::Sm80BackwardKernel& kernel = *GetParam();
    const Problem& p = inputs.problem;
    EmulatedCall call(inputs, features(), shape(), early, all_mixed);
    BackwardParams& params = call.params;
    std::string bytes = call.run(kernel, [&] {
      const std::int64_t tiles = p.heads_kv * params.k_blocks;
      if (tiles > 0) kernel.run(&params, static_cast<unsigned>(std::min<std::int64_t>(tiles, 3)));
      if (features().dbias) kernel.bias(&params, static_cast<unsigned>(sm80::bias_tiles(params, config())));
    });
    if (turns != nullptr) *turns = call.turns();
    return bytes;
  }
};

TEST_P(EmulatedBackward, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  EXPECT_TRUE(features() == cuda::backward_features_of(p));
  const sm80::BackwardConfig chosen = sm80::select_config(p, features(), shared_bytes(GetParam()->name)).value();
  EXPECT_TRUE(config() == chosen) << "the library takes another config by now";
  EXPECT_TRUE(shape() == sm80::shape_of(p, chosen));
  EXPECT_EQ(GetParam()->shared_bytes, sm80::layout_of(features(), chosen).total);
}

TEST_P(EmulatedBackward, IsRight) {
  const Problem p = parse_problem(GetParam()->problem);
  for (const check::Distribution distribution : check::kDistributions) {
    if (!check::can_judge(p, distribution)) continue;
    check::Inputs inputs = check::make_inputs(p, 1, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedBackward, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1);
  const std::string late = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == late);
}

TEST_P(EmulatedBackward, AnOffsetMovesTheBand) {
  expect_right_where_the_band_moves(parse_problem(GetParam()->problem), 1,
                                    [](check::Inputs& inputs) { run(inputs, false); });
}

TEST_P(EmulatedBackward, NaNAndInfinityReachOnlyWhatSeesThem) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.varlen || p.heads_q < 2 || p.seq_k < 65)
    GTEST_SKIP() << "the places of the faults are those of two heads of one length";
  const auto poked = [&](const test::Poke& poke) {
    check::Inputs inputs = check::make_inputs(p, 2);
    poke.poke(inputs);
    inputs.changed();
    run(inputs, false);
    expect_right(inputs, poke.name);
  };
  for (std::size_t i = 0; i < std::size(test::kPokes); i += 4) poked(test::kPokes[i]);
  for (const test::Poke& poke : test::kUpstreamPokes) poked(poke);
  for (const std::size_t i : {1, 3, 6, 9, 10}) poked(test::kManyPokes[i]);  // V, V's rows, K, Q, Q's rows beside V
  for (const test::Poke& poke : test::kManyUpstreamPokes) poked(poke);
}

TEST_P(EmulatedBackward, KeysWithoutQueryHeadsHaveGradientsOfZero) {
  Problem p = parse_problem(GetParam()->problem);
  p.heads_q = 0;
  set_contiguous(p);
  check::Inputs inputs = check::make_inputs(p, 1);
  run(inputs, false);
  expect_right(inputs, "no query heads");
}

// Rows that see nothing may have NaN in dO and, from keys of other calls, as their LSE; so may keys that no row sees in
// K and V.
TEST_P(EmulatedBackward, NothingLeaksFromWhatIsHidden) {
  Problem p = parse_problem(GetParam()->problem);
  if (p.varlen || !p.band.causal) GTEST_SKIP() << "everything is seen";
  p.band.align = Align::offset;
  p.band.offset = -40;
  check::Inputs inputs = check::make_inputs(p, 4);
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    for (std::int64_t i = 0; i < std::min<std::int64_t>(40, p.seq_q); ++i)
      for (std::int64_t d = 0; d < p.dim_v; ++d) test::set(inputs.tensors.dout, h, i, d, NAN);
  for (std::int64_t j = std::max<std::int64_t>(0, band.keys_of(p.seq_q - 1).hi); j < p.seq_k; ++j) {
    test::set(inputs.tensors.k, 0, j, 1, NAN);
    test::set(inputs.tensors.v, 0, j, 1, INFINITY);
  }
  inputs.changed();
  const Tensor& lse = inputs.tensors.lse;
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    for (std::int64_t i = 0; i < std::min<std::int64_t>(40, p.seq_q); ++i)
      static_cast<float*>(lse.data)[h * lse.stride[1] + i * lse.stride[2]] = NAN;
  run(inputs, false);
  expect_right(inputs, "hidden");
}

TEST_P(EmulatedBackward, TilesThatAreLeftOutChangeNoBit) {
  if (shape().turn_keys == 0) GTEST_SKIP() << "no mask, or sums in any order";
  expect_the_bits_of_all_tiles(
      parse_problem(GetParam()->problem), 1,
      [](check::Inputs& inputs, bool all_mixed, std::int64_t& turns) { return run(inputs, false, all_mixed, &turns); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedBackward, testing::ValuesIn(warps::sm80_backward_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
