// Scores at the ends of fp32, on every CUDA implementation. Needs a GPU.
#include "base/text.hpp"
#include "device.hpp"
#include "support/extremes.hpp"
#include "support/pokes.hpp"

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

TEST_F(DeviceExtremes, NanAndInfinityReachTheirRowsAndColumnsOfAGemm) {
  const std::vector<std::string> lines = {"linear m4 n70 k136 bf16 column_bias", "linear m7 n300 k1031 bf16",
                                          "linear m3 n41 k40 fp32", "flat_gemm m33 n200 k2056 fp16 out=fp32"};
  Findings findings;
  in_parallel(lines.size(), [&](std::size_t n) {
    Inputs inputs = make_inputs(parse_problem(lines[n]), 2);
    test::poke_gemm(inputs);
    findings.judge(inputs, lines[n]);
  });
  findings.report();
}

}  // namespace
}  // namespace onepass::check
