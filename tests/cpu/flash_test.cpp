// cpu.flash.*: scores that the rule cannot judge, a NaN that no row sees, and what it refuses. That it is right:
// conformance_test.cpp, shapes/prompts.txt.
#include "cpu/flash/flash.hpp"
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/check.hpp"

namespace onepass::cpu {
namespace {

std::vector<const Implementation*> usable() {
  std::vector<const Implementation*> rows;
  for (const Implementation& row : flash::implementations())
    if (why_not(row, parse_problem("fwd")).empty()) rows.push_back(&row);
  return rows;
}

class Flash : public testing::TestWithParam<const Implementation*> {};

// fp32 knows scores near 1e5 to 2^-7, so the weights of near ties to 1 %: in any order of summation another 1 %, which
// the rule, made for errors that average out, cannot compare. A wrong maximum or rescale is off by whole values of V.
TEST_P(Flash, HugeScores) {
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    check::Inputs inputs = check::make_inputs(
        parse_problem(text("fwd b2 h4/2 s200x333 d64 lse causal_bottom_right ", dtype)), 0, check::Distribution::huge);
    const check::Verdict verdict = check::check(*GetParam(), inputs);
    EXPECT_LE(verdict.lse_error, 1) << verdict.sentence;
    EXPECT_LT(verdict.max_error, 0.05) << verdict.sentence;
  }
}

// Puts `value` into row `token` of K or V, head 0.
void poison(const ConstTensor& t, std::int64_t token, float value) {
  for (std::int64_t d = 0; d < t.shape[3]; d += 3)
    store_element(check::Inputs::writable<void>(t), t.dtype, row_offset(t, 0, 0, token) + d, value);
}

TEST_P(Flash, AMaskedNanChangesNoBit) {
  check::Inputs clean = check::make_inputs(parse_problem("fwd h2 s100x300 d32 lse window=20:0")),
                dirty = check::make_inputs(clean.problem);
  poison(dirty.tensors.v, 5, NAN);  // before every window
  poison(dirty.tensors.k, 5, NAN);
  ASSERT_TRUE(check::run_on(*GetParam(), clean));
  ASSERT_TRUE(check::run_on(*GetParam(), dirty));
  EXPECT_EQ(std::memcmp(clean.tensors.out.data, dirty.tensors.out.data, 2 * 100 * 32 * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Isas, Flash, testing::ValuesIn(usable()), [](const auto& row) {
  const std::string name = row.param->name;
  return name.substr(name.rfind('.') + 1);
});

TEST(FlashList, RefusesWithASentence) {
  const Implementation& row = *usable().front();  // the list's first may be of instructions that this CPU lacks
  Problem p = parse_problem("fwd");
  p.device = {DeviceKind::cuda, 0};
  EXPECT_EQ(why_not(row, p), "it computes on the CPU only");
  p = parse_problem("fwd s1x3000000000");
  EXPECT_NE(why_not(row, p).find("3000000000"), std::string::npos);
}

}  // namespace
}  // namespace onepass::cpu
