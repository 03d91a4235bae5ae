// The plain kernels without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <string>

#include "cuda/plain/plain.hpp"
#include "on_host/plain_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

class EmulatedPlain : public testing::TestWithParam<const warps::PlainKernel*> {
 protected:
  static void run(check::Inputs& inputs) {
    CallOnHost call(inputs, cuda::kPlainTile, false);
    PlainParams params = cuda::plain_params(inputs.problem, call.params);
    params.recomputed.at = static_cast<int*>(inputs.tensors.recomputed.data);
    GetParam()->run(&params, static_cast<unsigned>(params.tiles));
  }
};

TEST_P(EmulatedPlain, IsRight) {
  EXPECT_TRUE(*static_cast<const ForwardFeatures*>(GetParam()->config) ==
              cuda::features_of(parse_problem(GetParam()->problem)));
  for (const check::Distribution distribution : check::kDistributions) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1, distribution);
    run(inputs);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedPlain, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.varlen || p.heads_q < 2 || p.dtype == DType::f8e4m3 || p.kv_dtype)
    GTEST_SKIP() << "the faults are put into two heads of one length, in a format that has infinities";
  for (std::size_t i = 0; i < std::size(test::kPokes); i += 3) {
    check::Inputs inputs = check::make_inputs(p, 2);
    test::kPokes[i].poke(inputs);
    run(inputs);
    expect_right(inputs, test::kPokes[i].name);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedPlain, testing::ValuesIn(warps::plain_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

TEST(PlainKernels, RefuseInASentence) {
  EXPECT_EQ(cuda::select_plain(parse_problem("fwd b600000000 h2 s1 d64 bf16 cuda")).refusal(),
            "batch x heads_q must be at most 536870911 (got 1200000000)");
}

}  // namespace
}  // namespace onepass
