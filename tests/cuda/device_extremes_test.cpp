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

void judge_poked(const std::vector<std::string>& lines, const std::vector<test::Poke>& pokes) {
  Findings findings;
  in_parallel(lines.size() * pokes.size(), [&](std::size_t n) {
    const std::string& line = lines[n % lines.size()];
    const test::Poke& poke = pokes[n / lines.size()];
    Inputs inputs = make_inputs(parse_problem(line), 2);
    poke.poke(inputs);
    inputs.changed();
    findings.judge(inputs, text(poke.name, " ", line));
  });
  findings.report();
}

TEST_F(DeviceExtremes, NanAndInfinityReachTheRowsThatSeeThem) {
  const std::vector<std::string> lines = {"b2 h8/2 s1x3000 d128 bf16 lse",
                                          "h8/2 s5x700 d128 bf16 causal_bottom_right out=fp32 lse",
                                          "h4/2 s3x400 d64 fp16 window=100:0 sinks lse",
                                          "h16/2 s8x900 d256 bf16 softcap=20 causal_bottom_right lse",
                                          "h4/2 s3x500 d64 bf16 mask=11qk lse",
                                          "h8/2 s2x600 d128 bf16 causal_bottom_right unified_max=1 recomputed lse",
                                          "h4/2 s3x400 d40/56 fp32 causal_bottom_right dropout=0.2 seed=3 lse",
                                          "h40/1 s4x700 d576/512 bf16 v_in_k causal_bottom_right lse",
                                          "h2 s300x333 d128 bf16 causal_bottom_right lse",
                                          "h2/1 s300 d128 bf16 mask=11qk lse",
                                          "h2 s200x300 d64 fp32 causal_bottom_right lse"};
  std::vector<test::Poke> pokes(std::begin(test::kPokes), std::end(test::kPokes));
  pokes.insert(pokes.end(), std::begin(test::kManyPokes), std::end(test::kManyPokes));
  judge_poked(lines, pokes);
}

TEST_F(DeviceExtremes, NanAndInfinityReachTheGradientsThatSeeThem) {
  const std::vector<std::string> lines = {
      "bwd b1 h2/1 s300x333 d64 bf16 causal_bottom_right",
      "bwd b1 h4/2 s260x300 d128 bf16 causal_bottom_right deterministic",
      "bwd b1 h2 s200 d128 fp16",
      "bwd b1 h4/1 s170x200 d59/43 fp16 causal_top_left",
      "bwd b1 h2/1 s300x200 d128 bf16 mask=11qk",
      "bwd b1 h2/1 s200 d96 bf16 bias=bf16:1hqk causal_top_left grads=dq,dk,dv,dbias",
      "bwd b1 h2/1 s140x330 d64 bf16 alibi window=90:5",
      "bwd b1 h2 s270 d192 bf16 window=60:20",
      "bwd b1 h2 s270 d256 bf16 causal_bottom_right"};
  std::vector<test::Poke> pokes(std::begin(test::kPokes), std::end(test::kPokes));
  pokes.insert(pokes.end(), std::begin(test::kUpstreamPokes), std::end(test::kUpstreamPokes));
  pokes.insert(pokes.end(), std::begin(test::kManyPokes), std::end(test::kManyPokes));
  pokes.insert(pokes.end(), std::begin(test::kManyUpstreamPokes), std::end(test::kManyUpstreamPokes));
  judge_poked(lines, pokes);
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
