// Whole kernels of src/cuda/sm90 without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "algebra/numerics.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "on_host/boxes.hpp"
#include "on_host/hopper.hpp"
#include "on_host/sm90_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/extremes.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

constexpr std::uint64_t kSeed = 2;  // an even one: a bias' rows lie side by side, as TMA wants them

class EmulatedHopper : public testing::TestWithParam<const warps::Sm90Kernel*> {
 protected:
  // The outputs' bytes.
  static std::string run(check::Inputs& inputs, bool early) {
    const warps::Sm90Kernel& kernel = *GetParam();
    const Problem& p = inputs.problem;
    const auto& c = *static_cast<const sm90::ForwardConfig*>(kernel.config);
    const cuda::TileShape tile{c.block_m(), c.block_n, 4 * c.groups};
    CallOnHost call(inputs, tile, early);
    EXPECT_TRUE(c == sm90::select_config(p).value()) << "the call takes another kernel";
    const sm90::TensorMaps maps = sm90::maps_of(sm90::map_shapes(p, c), inputs.tensors, boxes_of);
    kernel.run(&maps, &call.params, call.grid());
    return call.output_bytes();
  }
};

TEST_P(EmulatedHopper, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  const auto& features = *static_cast<const ForwardFeatures*>(GetParam()->features);
  const auto& config = *static_cast<const sm90::ForwardConfig*>(GetParam()->config);
  const sm90::ForwardConfig chosen = sm90::select_config(p).value();
  EXPECT_TRUE(features == cuda::features_of(p));
  EXPECT_TRUE(config == chosen) << "the library takes another config by now";
  EXPECT_EQ(GetParam()->shared_bytes, sm90::layout_of(features, chosen).total);
}

TEST_P(EmulatedHopper, IsRight) {
  for (const check::Distribution distribution : check::kDistributions) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), kSeed, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedHopper, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), kSeed);
  const std::string late = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == late);
}

TEST_P(EmulatedHopper, AnOffsetMovesTheBand) {
  expect_right_where_the_band_moves(parse_problem(GetParam()->problem), kSeed,
                                    [](check::Inputs& inputs) { run(inputs, false); });
}

TEST_P(EmulatedHopper, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  const Problem p = parse_problem(GetParam()->problem);
  const AttentionFeatures& features = static_cast<const ForwardFeatures*>(GetParam()->features)->attention;
  if (p.varlen) GTEST_SKIP() << "the places of the faults are those of sequences of one length";
  if (!features.bounded_right && !features.masks()) GTEST_SKIP() << "every row sees every key";
  for (const std::size_t i : {0, 8}) {  // in V, in the last row of K: rows computed again are slow here
    check::Inputs inputs = check::make_inputs(p, kSeed);
    test::kPokes[i].poke(inputs);
    run(inputs, false);
    expect_right(inputs, test::kPokes[i].name);
  }
}

TEST_P(EmulatedHopper, NaNAndInfinityInManyValues) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.paged() || p.dtype == DType::f8e4m3 || p.key_dtype() != p.dtype)
    GTEST_SKIP() << "the pokes are of plain values";
  for (const test::Poke& poke : test::kValuePokes) {
    check::Inputs inputs = check::make_inputs(p, kSeed);
    poke.poke(inputs);
    run(inputs, false);
    expect_right(inputs, poke.name);
  }
}

TEST_P(EmulatedHopper, ScoresAtTheEndsOfFp32) {
  const Problem p = parse_problem(GetParam()->problem);
  for (const test::Extreme& extreme : test::extremes()) {
    if (p.varlen || p.dtype == DType::f8e4m3 || !extreme.fits(p)) continue;  // e4m3 ends at 448
    check::Inputs inputs = check::make_inputs(p, kSeed);
    extreme.make(inputs);
    run(inputs, false);
    test::expect_close(verdict_of(inputs), p.dtype, extreme.name);
  }
}

// Every element of a tensor becomes value(token, itself). token: the index of a row of q.
void change(const ConstTensor& t, const std::function<float(std::int64_t token, float)>& value) {
  void* const data = check::Inputs::writable<void>(t);
  std::int64_t count = 1;
  for (int i = 0; i < t.rank; ++i) count *= t.shape[i];
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t at = 0, token = 0, rest = n;
    for (int i = t.rank - 1; i >= 0; rest /= t.shape[i--]) {
      at += rest % t.shape[i] * t.stride[i];
      if (i == (t.rank == 4 ? 2 : 0)) token = rest % t.shape[i];
    }
    store_element(data, t.dtype, at, value(token, load_element(data, t.dtype, at)));
  }
}

// Warps whose rows all have a score that is not negative compare integers, the others floats (largest_scores.cuh).
TEST_P(EmulatedHopper, LargestScoresOfEitherSign) {
  const Problem p = parse_problem(GetParam()->problem);
  if (!p.want_row_max) GTEST_SKIP() << "no row maxima";
  for (const int negative : {0, 1, 8}) {  // of eight rows, those whose scores are negative but for biases and slopes
    check::Inputs inputs = check::make_inputs(p, kSeed);
    change(inputs.tensors.k, [](std::int64_t, float x) { return -std::abs(x); });
    change(inputs.tensors.q, [&](std::int64_t i, float x) { return i % 8 < negative ? std::abs(x) : -std::abs(x); });
    run(inputs, false);
    expect_right(inputs, text(negative, " of eight rows are negative"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedHopper, testing::ValuesIn(warps::sm90_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
