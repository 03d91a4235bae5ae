// The plain GEMM without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <gtest/gtest.h>

#include <string>

#include "cuda/gemm/matrices.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "on_host/plain_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

TEST(EmulatedPlainGemm, IsRight) {
  ASSERT_EQ(warps::plain_gemm_kernels.size(), 3U);
  for (const warps::PlainKernel* kernel : warps::plain_gemm_kernels) {
    const Problem p = parse_problem(kernel->problem);
    for (const check::Distribution distribution : check::kDistributions) {
      check::Inputs inputs = check::make_inputs(p, 2, distribution);
      if (distribution == check::Distribution::rising) test::poke_gemm(inputs);
      inputs.poison_outputs();
      PlainGemmParams params = cuda::plain_gemm_params(inputs.problem);
      cuda::bind(params, inputs.tensors);
      kernel->run(&params, static_cast<unsigned>(cuda::plain_gemm_blocks(inputs.problem)));
      const check::Verdict verdict = check::judge(inputs, serial_executor());
      EXPECT_TRUE(verdict.right) << kernel->name << " " << check::name_of(distribution) << ": " << verdict.sentence;
    }
  }
}

TEST(PlainGemm, RefusesInASentence) {
  EXPECT_EQ(cuda::select_plain_gemm(parse_problem("linear m2000000000 n2000000000 k1 fp16 cuda")).refusal(),
            "m x n must be at most 2147483647 tiles of 16 x 16 (got m = 2000000000, n = 2000000000)");
}

}  // namespace
}  // namespace onepass
