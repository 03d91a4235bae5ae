// The kernel of a flat GEMM without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <vector>

#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/matrices.hpp"
#include "cuda/host/kernels.hpp"
#include "on_host/gemm_kernel.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

constexpr int kSharedBytes = 232448, kMultiprocessors = 132;  // that a block may have, and an H200 has

void run(const warps::GemmKernel& kernel, const cuda::FlatGemmPlan& plan, check::Inputs& inputs) {
  inputs.poison_outputs();
  std::vector<float> partials(
      static_cast<std::size_t>(plan.splits * plan.tiles_n * inputs.problem.m * plan.config.tile_n() + 1), -7.0f);
  std::vector<unsigned> counters(cuda::kWorkspaceCounters, 0);
  FlatGemmParams params = cuda::flat_gemm_params(inputs.problem, plan);
  cuda::bind(params, inputs.tensors);
  params.partials = partials.data();
  params.counters = counters.data();
  kernel.run(&params, static_cast<unsigned>(plan.blocks), plan.config.shared_bytes());
  EXPECT_EQ(partials.back(), -7.0f) << "written past the workspace";
  EXPECT_EQ(counters, std::vector<unsigned>(cuda::kWorkspaceCounters, 0)) << "counters are not as they were found";
}

TEST(EmulatedFlatGemm, IsRightInAnyNumberOfSplits) {
  int count = 0;
  for (const warps::GemmKernel* kernel : warps::gemm_kernels) {
    const Problem p = parse_problem(kernel->problem);
    const cuda::FlatGemmPlan chosen = cuda::select_flat_gemm(p, kSharedBytes, kMultiprocessors).value();
    EXPECT_TRUE(*static_cast<const FlatGemmConfig*>(kernel->config) == chosen.config)
        << kernel->name << ": the library takes another config by now";
    const int steps = static_cast<int>((p.k + chosen.config.step() - 1) / chosen.config.step());
    for (const check::Distribution distribution : check::kDistributions) {
      for (int splits = 1; splits <= steps; splits *= 2) {
        // Also blocks that go through several tiles, whose ring runs on from one to the next.
        cuda::FlatGemmPlan plan = cuda::cut_flat_gemm(p, chosen.config, splits, splits % 2 == 0 ? 3 : 7);
        plan.group = plan.splits % 4 == 2 ? 2 : 1;
        check::Inputs inputs = check::make_inputs(p, 2, distribution);
        if (distribution == check::Distribution::rising) test::poke_gemm(inputs);
        run(*kernel, plan, inputs);
        const check::Verdict verdict = check::judge(inputs, serial_executor());
        EXPECT_TRUE(verdict.right) << kernel->name << " " << check::name_of(distribution) << " " << plan.splits
                                   << " splits: " << verdict.sentence;
        ++count;
      }
    }
  }
  EXPECT_GE(count, 28);
}

TEST(FlatGemmPlan, RefusesInASentence) {
  const auto refusal = [](const char* line) {
    return cuda::select_flat_gemm(parse_problem(line), kSharedBytes, kMultiprocessors).refusal();
  };
  EXPECT_EQ(refusal("flat_gemm m65 n8 k8 bf16 cuda"), "m must be at most 64 (got 65)");
  EXPECT_EQ(refusal("flat_gemm m1 n8 k8 fp32 cuda"), "requires fp16 or bf16 (got fp32)");
}

}  // namespace
}  // namespace onepass
