// Scores at the ends of fp32, on every CUDA implementation. Needs a GPU.
#include "check/extremes.hpp"
#include "core/text.hpp"
#include "device.hpp"

namespace onepass::check {
namespace {

using DeviceExtremes = OnDevice<testing::Test>;

TEST_F(DeviceExtremes, AreRight) {
  struct Case {
    const test::Extreme& extreme;
    std::string line;
  };
  std::vector<Case> cases;
  for (const test::Extreme& extreme : test::extremes())
    for (const std::string& line : extreme.lines) cases.push_back({extreme, line});
  Findings findings;
  in_parallel(cases.size(), [&](std::size_t n) {
    Inputs inputs = make_inputs(parse_problem(cases[n].line), 2);
    cases[n].extreme.make(inputs);
    inputs.changed();
    findings.judge(inputs, text(cases[n].extreme.name, " ", cases[n].line), test::most_error(inputs.problem.dtype));
  });
  findings.report();
}

}  // namespace
}  // namespace onepass::check
