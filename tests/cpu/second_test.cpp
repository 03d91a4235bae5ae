// cpu.backward_jvp.* against the oracle: every feature, dtype and shape; its bits whatever the threads; what is not
// finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "check/check.hpp"
#include "shapes/shapes.hpp"
#include "support/cpu_kernels.hpp"
#include "support/property.hpp"
#include "support/second_problem.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

void expect_right(Inputs& inputs, std::string_view what) {
  test::expect_all_right(test::cpu_kernels(kBackwardJvp), inputs, what);
}

class SecondShapes : public testing::TestWithParam<const char*> {};

TEST_P(SecondShapes, EveryKernel) {
  const auto lines = test::shapes(GetParam());
  for (std::size_t n = 0; n < lines.size() && !testing::Test::HasFailure(); ++n) {
    const Problem p =
        test::second_of(parse_problem(lines[n]),
                        {.tdout = n % 3 != 1, .along_side = n % 4 != 1, .dlse = n % 4 == 2, .f32 = n % 5 == 3});
    Inputs inputs = make_inputs(p, n, test::kDerivativeScores[n / 2 % 3], static_cast<Placement>(n % 3));
    expect_right(inputs, name_of(test::kDerivativeScores[n / 2 % 3]));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, SecondShapes,
                         testing::Values("sizes.txt", "features.txt", "layouts.txt", "mods.txt", "block_masks.txt"),
                         test::stem);

TEST(Second, RandomProblemsAreRight) {
  const auto rows = test::cpu_kernels(kBackwardJvp);
  test::check_cases(
      [] {
        const Problem p = test::random_problem();
        return test::random_case(test::second_of(
            p, {.tdout = test::flip(), .along_side = test::flip(), .dlse = test::flip(), .f32 = test::rarely()}));
      },
      [&](const test::Case& c, test::Reproduction& r) { test::expect_all_right(c, rows, r); });
}

// Each result alone: products that it does not need are left out.
TEST(Second, EachResultAlone) {
  for (const char* const grads : {"dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes", "dq,dv", "dk,dbias"}) {
    Inputs inputs =
        make_inputs(parse_problem(text("bwd_jvp b2 h4/2 s70x130 d24/3 fp32 causal_bottom_right bias=fp32:1h1k ",
                                       "tbias alibi sinks tsinks tdout grads=", grads)),
                    2);
    expect_right(inputs, grads);
  }
}

// Keys and rows in several parts, whose sums have an order.
TEST(Second, SplitsOfKeysAndRows) {
  for (const char* const line : {"bwd_jvp b1 h1 s1500 d32 fp32 causal_bottom_right tdout",
                                 "bwd_jvp b1 h2/1 s700x2000 d64 bf16 window=300:0 softcap=5 tdout",
                                 "bwd_jvp b1 h1 s1200 d16 fp32 mask_mod={q_index / 400 == k_index / 400} tdout"}) {
    Inputs inputs = make_inputs(parse_problem(line), 2);
    expect_right(inputs, "");
  }
}

// An element of each input that is not finite reaches what the textbook says, and nothing else.
TEST(Second, NanAndInfinity) {
  const char* const lines[] = {"bwd_jvp b1 h2/1 s70x200 d40/24 fp32 causal_bottom_right tdout dlse tdlse",
                               ("bwd_jvp b1 h2 s30x150 d16 fp32 softcap=3 bias=fp32:1hqk tbias mask=11qk sinks tsinks "
                                "grads=dq,dk,dv,dbias,dsinks"),
                               "bwd_jvp b1 h2 s30x150 d16 bf16 window=20:0 dropout=0.3 seed=4 tdout",
                               "bwd_jvp h2 d8 fp32 varlen=3,40/2,130"};
  constexpr Role kPoked[] = {Role::q,  Role::k,     Role::v,    Role::dout,  Role::tq,   Role::tk,
                             Role::tv, Role::tbias, Role::dlse, Role::tdout, Role::tdlse};
  test::with_one_not_finite(lines, kPoked, expect_right);
}

TEST(Second, HasTheSameBitsWithAnyNumberOfThreads) {
  constexpr const char* kLine = "bwd_jvp b2 h4/2 s300x900 d48 bf16 causal_top_left tdout";
  const std::string one = test::bits_of(kLine, 1);
  EXPECT_TRUE(one == test::bits_of(kLine, 3));
  EXPECT_GT(one.size(), 4u * 300 * 48 * 2);
}

// The rule is sharp: a derivative that misses a little is called wrong.
TEST(Second, AWrongDerivativeIsCalledWrong) {
  Inputs inputs = make_inputs(parse_problem("bwd_jvp b1 h2 s40x90 d32 fp32 sinks tsinks tdout"), 2);
  inputs.attend();
  EXPECT_TRUE(judge(inputs, serial_executor()).right);
  auto* const tdk = static_cast<float*>(inputs.tensors.tdk.data);
  const float most =
      std::abs(*std::max_element(tdk, tdk + 32 * 90, [](float x, float y) { return std::abs(x) < std::abs(y); }));
  for (int i = 0; i < 32; ++i) tdk[i] += 1e-2f * most;
  EXPECT_FALSE(judge(inputs, serial_executor()).right);
}

TEST(Second, RefusesInASentence) {
  const struct {
    const char *line, *sentence;
  } cases[] = {{"bwd_jvp b1 h1 s4 d8 fp32 tbias", "tbias requires bias"},
               {"bwd_jvp b1 h1 s4 d8 fp32 grads=dsinks", "tdsinks requires sinks"},
               {"bwd_jvp b1 h1 s4 d8 fp8_e4m3", "backward_jvp does not support fp8_e4m3 q, k and v"},
               {"jvp b1 h1 s4 d8 fp32 tdout", "tdout"}};
  for (const auto& [line, sentence] : cases)
    test::expect_refused([&line = line] { (void)parse_problem(line); }, sentence);
}

}  // namespace
}  // namespace onepass::check
