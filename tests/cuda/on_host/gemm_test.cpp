// The kernel of a flat GEMM without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <vector>

#include "check/inputs.hpp"
#include "check/verdict.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/host/kernels.hpp"
#include "on_host/gemm_kernel.hpp"

namespace onepass {
namespace {

constexpr int kSharedBytes = 232448, kMultiprocessors = 132;  // that a block may have, and an H200 has

TEST(EmulatedFlatGemm, IsRightOnAnyNumberOfBlocks) {
  int count = 0, shared = 0;
  for (const warps::GemmKernel* kernel : warps::gemm_kernels) {
    const Problem p = parse_problem(kernel->problem);
    cuda::FlatGemmPlan chosen;
    std::string why;
    ASSERT_TRUE(cuda::select_flat_gemm(p, kSharedBytes, kMultiprocessors, chosen, why)) << why;
    EXPECT_TRUE(*static_cast<const FlatGemmConfig*>(kernel->config) == chosen.config)
        << kernel->name << ": the library takes another config by now";
    for (const check::Distribution distribution : check::kDistributions) {
      // As many blocks as tiles, fewer that go through several, and more, which share what is left or all of it.
      for (const int blocks : {chosen.tiles_n, 1, 2, 3, 7, 13}) {
        const cuda::FlatGemmPlan plan = cuda::cut_flat_gemm(p, chosen.config, blocks);
        check::Inputs inputs = check::make_inputs(p, 2, distribution);
        inputs.poison_outputs();
        std::vector<float> partials(plan.partial_bytes / sizeof(float) + 1, -7.0f);
        std::vector<unsigned> counters(cuda::kWorkspaceCounters, 0);
        FlatGemmParams params = cuda::flat_gemm_params(inputs.problem, plan, inputs.tensors, partials.data());
        params.counters = counters.data();
        kernel->run(&params, static_cast<unsigned>(plan.blocks), plan.config.shared_bytes());
        EXPECT_EQ(partials.back(), -7.0f) << "written past the workspace";
        EXPECT_EQ(counters, std::vector<unsigned>(cuda::kWorkspaceCounters, 0))
            << "counters are not as they were found";
        const check::Verdict verdict = check::judge(inputs, serial_executor());
        EXPECT_TRUE(verdict.right) << kernel->name << " " << check::name_of(distribution) << " " << blocks
                                   << " blocks: " << verdict.sentence;
        shared += plan.whole < plan.tiles_n;
        ++count;
      }
    }
  }
  EXPECT_GE(count, 96);
  EXPECT_GE(shared, 24);
}

TEST(FlatGemmPlan, RefusesInASentence) {
  cuda::FlatGemmPlan plan;
  std::string why;
  EXPECT_FALSE(cuda::select_flat_gemm(parse_problem("flat_gemm m65 n8 k8 bf16 cuda"), kSharedBytes, kMultiprocessors,
                                      plan, why));
  EXPECT_EQ(why, "it takes up to 64 rows; there are 65");
  EXPECT_FALSE(
      cuda::select_flat_gemm(parse_problem("flat_gemm m1 n8 k8 fp32 cuda"), kSharedBytes, kMultiprocessors, plan, why));
  EXPECT_EQ(why, "it multiplies fp16 and bf16");
}

}  // namespace
}  // namespace onepass
