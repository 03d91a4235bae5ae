// Whole kernels of src/cuda/sm80 without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <string>

#include "cuda/sm80/forward/forward.hpp"
#include "on_host/shared_bytes.hpp"
#include "on_host/sm80_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/extremes.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

class EmulatedKernel : public testing::TestWithParam<const warps::Sm80Kernel*> {
 protected:
  // The outputs' bytes.
  static std::string run(check::Inputs& inputs, bool early) {
    const warps::Sm80Kernel& kernel = *GetParam();
    const auto& c = *static_cast<const sm80::ForwardConfig*>(kernel.config);
    const cuda::TileShape tile{c.block_m(), c.block_n, c.warps * c.row_tiles};
    CallOnHost call(inputs, tile, early);
    kernel.run(&call.params, call.grid());
    return call.output_bytes();
  }
};

TEST_P(EmulatedKernel, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  const auto& features = *static_cast<const ForwardFeatures*>(GetParam()->features);
  const auto& config = *static_cast<const sm80::ForwardConfig*>(GetParam()->config);
  const sm80::ForwardConfig chosen = sm80::select_config(p, shared_bytes(GetParam()->name)).value();
  EXPECT_TRUE(features == cuda::features_of(p));
  EXPECT_TRUE(config == chosen) << "the library takes another config by now";
  EXPECT_EQ(GetParam()->shared_bytes, sm80::layout_of(features, chosen).total);
}

TEST_P(EmulatedKernel, IsRight) {
  for (const check::Distribution distribution : check::kDistributions) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedKernel, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1);
  const std::string late = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == late);
}

TEST_P(EmulatedKernel, AnOffsetMovesTheBand) {
  expect_right_where_the_band_moves(parse_problem(GetParam()->problem), 1,
                                    [](check::Inputs& inputs) { run(inputs, false); });
}

TEST_P(EmulatedKernel, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.varlen || p.heads_q < 2) GTEST_SKIP() << "the places of the faults are those of two heads of one length";
  for (std::size_t i = 0; i < std::size(test::kPokes); i += 3) {
    check::Inputs inputs = check::make_inputs(p, 2);
    test::kPokes[i].poke(inputs);
    run(inputs, false);
    expect_right(inputs, test::kPokes[i].name);
  }
}

TEST_P(EmulatedKernel, NaNAndInfinityInManyValues) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.paged() || p.dtype == DType::f8e4m3 || p.key_dtype() != p.dtype)
    GTEST_SKIP() << "the pokes are of plain values";
  for (const test::Poke& poke : test::kValuePokes) {
    check::Inputs inputs = check::make_inputs(p, 2);
    poke.poke(inputs);
    run(inputs, false);
    expect_right(inputs, poke.name);
  }
}

TEST_P(EmulatedKernel, ScoresAtTheEndsOfFp32) {
  const Problem p = parse_problem(GetParam()->problem);
  for (const test::Extreme& extreme : test::extremes()) {
    if (p.varlen || !extreme.fits(p)) continue;
    check::Inputs inputs = check::make_inputs(p, 2);
    extreme.make(inputs);
    run(inputs, false);
    test::expect_close(verdict_of(inputs), p.dtype, extreme.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedKernel, testing::ValuesIn(warps::sm80_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
