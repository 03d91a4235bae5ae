// The kernels of softmax over rows without a GPU, judged as on one: by the float64 oracle, with poison around
// everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "cuda/softmax/softmax.hpp"
#include "on_host/rows_kernel.hpp"

namespace onepass {
namespace {

const SoftmaxConfig& config_of(const warps::RowsKernel& kernel) {
  return *static_cast<const SoftmaxConfig*>(kernel.config);
}
bool is_first(const warps::RowsKernel& kernel) { return config_of(kernel).part == SoftmaxPart::states; }

void run(const warps::RowsKernel& kernel, check::Inputs& inputs, const cuda::SoftmaxPlan& plan) {
  std::vector<SoftmaxState> states(plan.workspace_bytes() / sizeof(SoftmaxState) + 1, SoftmaxState{-7.0f, -7.0f});
  SoftmaxParams params = cuda::softmax_params(inputs.problem, plan);
  cuda::bind(params, plan, inputs.tensors, states.data());
  inputs.poison_outputs();
  if (plan.pieces > 1 && !plan.config.row_lse) {
    const auto first = std::ranges::find_if(warps::rows_kernels, [&](const warps::RowsKernel* k) {
      return is_first(*k) && config_of(*k) == cuda::states_config(plan);
    });
    ASSERT_NE(first, warps::rows_kernels.end()) << "kernels.txt lacks the first launch";
    (*first)->run(&params, static_cast<unsigned>(cuda::softmax_blocks(plan, cuda::states_config(plan))));
  }
  kernel.run(&params, static_cast<unsigned>(cuda::softmax_blocks(plan, plan.config)));
  EXPECT_EQ(states.back().m, -7.0f) << "written past the workspace";
}

TEST(EmulatedRows, AreRightAndTheLibrarys) {
  int count = 0;
  for (const warps::RowsKernel* kernel : warps::rows_kernels) {
    if (is_first(*kernel)) continue;
    const Problem p = parse_problem(kernel->problem);
    const cuda::SoftmaxPlan plan = cuda::select_softmax(p).value();
    EXPECT_TRUE(config_of(*kernel) == plan.config) << kernel->name << ": the library takes another config by now";
    for (const check::Distribution distribution : check::kDistributions) {
      if (!check::can_judge(p, distribution)) continue;
      for (const std::uint64_t seed : {2, 3}) {
        check::Inputs inputs = check::make_inputs(p, seed, distribution);
        run(*kernel, inputs, plan);
        const check::Verdict verdict = check::judge(inputs, serial_executor());
        EXPECT_TRUE(verdict.right) << kernel->name << " " << check::name_of(distribution) << ": " << verdict.sentence;
        ++count;
      }
    }
  }
  EXPECT_GE(count, 70);
}

// Rows whose first number lies at any address, of tensors that lie differently.
TEST(EmulatedRows, BeginAtAnyAddress) {
  for (const warps::RowsKernel* kernel : warps::rows_kernels) {
    const SoftmaxConfig& c = config_of(*kernel);
    if (is_first(*kernel) || !c.unit || c.even || c.part != SoftmaxPart::whole) continue;
    const std::string line = kernel->problem;
    if (line.find("softmax_bwd") != line.npos || line.find("strides") != line.npos) continue;
    Problem p = parse_problem(line);
    for (const std::int64_t gap : {1, 3, 8}) {  // elements between the rows of x and y
      p.layout.x[2] = p.layout.y[2] = p.seq_k + gap;
      p.layout.y[2] += 2;
      p.layout.x[1] = p.layout.x[2] * p.seq_q, p.layout.y[1] = p.layout.y[2] * p.seq_q;
      p.layout.x[0] = p.layout.x[1] * p.heads_q, p.layout.y[0] = p.layout.y[1] * p.heads_q;
      const cuda::SoftmaxPlan plan = cuda::select_softmax(p).value();
      ASSERT_TRUE(plan.config == config_of(*kernel));
      check::Inputs inputs = check::make_inputs(p, 4);
      run(*kernel, inputs, plan);
      const check::Verdict verdict = check::judge(inputs, serial_executor());
      EXPECT_TRUE(verdict.right) << kernel->name << " gap " << gap << ": " << verdict.sentence;
    }
  }
}

TEST(SoftmaxPlan, RefusesInASentence) {
  EXPECT_EQ(cuda::select_softmax(parse_problem("softmax s1x2000000000 bf16 cuda")).refusal(),
            "supports at most 2147483647 rows of at most 1073741823 elements (got 1 rows of 2000000000)");
}

}  // namespace
}  // namespace onepass
