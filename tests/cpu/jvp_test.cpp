// cpu.jvp.* against the oracle: every feature, dtype and shape; its bits whatever the threads; what is not finite.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "check/check.hpp"
#include "shapes/shapes.hpp"
#include "support/cpu_kernels.hpp"
#include "support/jvp_problem.hpp"
#include "support/property.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

void expect_right(Inputs& inputs, std::string_view what) {
  test::expect_all_right(test::cpu_kernels(kJvp), inputs, what);
}

class JvpShapes : public testing::TestWithParam<const char*> {};

TEST_P(JvpShapes, EveryKernel) {
  const auto lines = test::shapes(GetParam());
  for (std::size_t n = 0; n < lines.size() && !testing::Test::HasFailure(); ++n) {
    const Problem p = test::jvp_of(parse_problem(lines[n]), n % 3 != 1, n % 4 != 2);
    Inputs inputs = make_inputs(p, n, test::kDerivativeScores[n / 2 % 3], static_cast<Placement>(n % 3));
    expect_right(inputs, name_of(test::kDerivativeScores[n / 2 % 3]));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, JvpShapes,
                         testing::Values("sizes.txt", "features.txt", "layouts.txt", "mods.txt", "block_masks.txt"),
                         test::stem);

TEST(Jvp, RandomProblemsAreRight) {
  const auto rows = test::cpu_kernels(kJvp);
  test::check_cases(
      [] {
        const Problem p = test::random_problem();
        return test::random_case(test::jvp_of(p, test::flip(), test::flip()));
      },
      [&](const test::Case& c, test::Reproduction& r) { test::expect_all_right(c, rows, r); });
}

// An element of each input that is not finite reaches what the textbook says, and nothing else.
TEST(Jvp, NanAndInfinity) {
  const char* const lines[] = {
      "jvp b1 h2/1 s70x200 d40/24 fp32 causal_bottom_right lse tlse",
      "jvp b1 h2 s30x150 d16 fp32 softcap=3 bias=fp32:1hqk tbias mask=11qk sinks tsinks lse tlse",
      "jvp b1 h2 s30x150 d16 bf16 window=20:0 dropout=0.3 seed=4 lse tlse",
      "jvp h2 d8 fp32 varlen=3,40/2,130 lse tlse"};
  constexpr Role kPoked[] = {Role::q, Role::k, Role::v, Role::tq, Role::tk, Role::tv, Role::tbias};
  test::with_one_not_finite(lines, kPoked, expect_right);
}

TEST(Jvp, HasTheSameBitsWithAnyNumberOfThreads) {
  constexpr const char* kLine = "jvp b2 h4/2 s300x500 d48 bf16 causal_top_left lse tlse";
  const std::string one = test::bits_of(kLine, 1);
  EXPECT_TRUE(one == test::bits_of(kLine, 3));
  EXPECT_GT(one.size(), 4u * 300 * 48 * 2);
}

// The rule is sharp: a derivative that misses one term is called wrong.
TEST(Jvp, AWrongDerivativeIsCalledWrong) {
  Inputs inputs = make_inputs(parse_problem("jvp b1 h2 s40x90 d32 fp32 sinks tsinks lse tlse"), 2);
  inputs.attend();
  EXPECT_TRUE(judge(inputs, serial_executor()).right);
  auto* const tlse = static_cast<float*>(inputs.tensors.tlse.data);
  tlse[5] += 1e-3f;
  EXPECT_FALSE(judge(inputs, serial_executor()).right);
  tlse[5] -= 1e-3f;
  auto* const tout = static_cast<float*>(inputs.tensors.tout.data);
  for (int i = 0; i < 32; ++i) tout[i] += 1e-3f;
  EXPECT_FALSE(judge(inputs, serial_executor()).right);
}

TEST(Jvp, RefusesInASentence) {
  const struct {
    const char *line, *sentence;
  } cases[] = {{"jvp b1 h1 s4 d8 fp32 tbias", "tbias requires bias"},
               {"jvp b1 h1 s4 d8 fp32 tsinks", "tsinks requires sinks"},
               {"jvp b1 h1 s4 d8 fp32 tlse", "tlse requires lse"},
               {"jvp b1 h1 s4 d8 fp8_e4m3", "jvp does not support fp8_e4m3 q, k and v"}};
  for (const auto& [line, sentence] : cases)
    test::expect_refused([&line = line] { (void)parse_problem(line); }, sentence);
}

}  // namespace
}  // namespace onepass::check
