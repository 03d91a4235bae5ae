// Scores at the ends of fp32, on every implementation of this machine.
#include <gtest/gtest.h>

#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "support/extremes.hpp"

namespace onepass::check {
namespace {

class Extremes : public testing::TestWithParam<test::Extreme> {};

TEST_P(Extremes, AreRight) {
  for (const std::string& line : GetParam().lines) {
    Inputs inputs = make_inputs(parse_problem(line), 2);
    GetParam().make(inputs);
    inputs.changed();
    int takers = 0;
    for (const Implementation* row : plan::implementations()) {
      if (reference::is_reference(*row)) continue;
      const Verdict verdict = check(*row, inputs);
      if (!verdict.accepted) continue;
      ++takers;
      test::expect_close(verdict, inputs.problem.dtype, text(row->name, " \"", line, "\""));
    }
    EXPECT_GT(takers, 0) << line;
  }
}
INSTANTIATE_TEST_SUITE_P(Cpu, Extremes, testing::ValuesIn(test::extremes()),
                         [](const auto& extreme) { return std::string(extreme.param.name); });

}  // namespace
}  // namespace onepass::check
