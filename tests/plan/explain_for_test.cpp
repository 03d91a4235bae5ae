// The kernels that a GPU of another machine would run.
#include <gtest/gtest.h>

#include "cuda/host/pretended.hpp"
#include "cuda/target.hpp"
#include "onepass/error.hpp"
#include "plan/plan.hpp"
#include "problem/grammar/on.hpp"

namespace onepass {
namespace {

std::string lines(const char* target, const char* problem) {
  return explain_for(target, parse_problem_on({DeviceKind::cuda, 0}, problem));
}
bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

TEST(ExplainFor, NamesTheKernelOfTheArchitecture) {
  const std::string hopper = lines("sm_90", "h16 s4096 d128 bf16 causal_bottom_right"),
                    ampere = lines("sm_80", "h16 s4096 d128 bf16 causal_bottom_right");
  EXPECT_TRUE(
      hopper.starts_with("fwd b1 h16 s4096 d128 bf16 causal_bottom_right cuda:0\n"
                         "on NVIDIA H100 SXM (sm_90, 132 multiprocessors), which need not be here\n"))
      << hopper;
  EXPECT_TRUE(has(hopper, "\n* cuda.sm90: ")) << hopper;
  EXPECT_TRUE(has(ampere, "\n* cuda.sm80: ")) << ampere;
  EXPECT_TRUE(has(ampere, "\n  cuda.sm90: no, ")) << ampere;
}

TEST(ExplainFor, EveryOperator) {
  for (const char* target : {"sm_80", "sm_86", "sm_90a", "sm_120"}) {
    for (const char* problem : {"bwd b1 h4 s256 d64 bf16", "merge n40 b2 h8 s1 d128 bf16 lse", "softmax s40x4096 bf16",
                                "softmax_bwd s40x64 fp16", "quantize s256x64 bf16", "flat_gemm m8 n4096 k4096 bf16",
                                "linear m8 n4096 k4096 bf16", "b8 h32/8 s1x8192 d128 bf16 seqused kv=paged:16",
                                "h4 varlen=100,200 d64 bf16 causal_bottom_right"}) {
      const std::string said = lines(target, problem);
      EXPECT_TRUE(has(said, "\n* cuda.")) << target << ": " << said;
    }
  }
}

TEST(ExplainFor, IsOverWhenItReturns) {
  const Problem here = parse_problem("h2 s64 d64");
  const std::string before = explain(here);
  (void)explain_for("sm_90", here);
  EXPECT_EQ(cuda::pretended_device(), nullptr);
  EXPECT_EQ(explain(here), before);
  EXPECT_THROW((void)explain_for("sm_75", here), Error);
  EXPECT_EQ(cuda::pretended_device(), nullptr);
}

TEST(ExplainFor, NothingIsLaunched) {
  const Problem there = cuda::as_called(parse_problem("h2 s64 d64 bf16"));
  const cuda::PretendedDevice pretended(cuda::typical_device("sm_90"));
  EXPECT_EQ(make_plan(there).name(), "cuda.sm90");
}

}  // namespace
}  // namespace onepass
