// Every CUDA backward on the backward of every line of tests/shapes, of random problems, and the same bits every time.
#include <rapidcheck.h>

#include "base/text.hpp"
#include "device.hpp"
#include "support/backward_problem.hpp"
#include "support/property.hpp"

namespace onepass::check {
namespace {

constexpr Distribution kScores[] = {Distribution::normal, Distribution::rising, Distribution::one_hot};

// deterministic in every second one; gradients in fp32 and a dLSE in some.
Problem backward_of_line(const Problem& forward, std::size_t n) {
  Problem p = test::backward_of(forward, n % 5 == 3, n % 3 == 1);
  p.deterministic = n % 2 == 1;
  return p;
}
bool somebody_takes(Problem p) {
  p.device = {DeviceKind::cuda, 0};
  return !takers_of(p).empty();
}
void judge_problems(const std::vector<Problem>& problems, Findings& findings) {
  in_parallel(problems.size(), [&](std::size_t n) {
    const Problem& p = problems[n];
    const Distribution scores = kScores[n % 3];
    Problem twin = p;
    twin.device = {DeviceKind::cuda, 0};
    const std::string what = test::command_of(twin, n, scores);
    try {
      if (!somebody_takes(p)) return;
      Inputs inputs = make_inputs(p, n, scores);
      findings.judge(inputs, what);
    } catch (const std::exception& e) {
      findings.wrong(what + ": " + e.what());
    }
  });
}

class DeviceBackward : public OnDevice<testing::TestWithParam<const char*>> {};
TEST_P(DeviceBackward, EveryImplementationIsRight) {
  std::vector<Problem> problems;
  for (const std::string& line : test::shapes(GetParam()))
    problems.push_back(backward_of_line(parse_problem(line), problems.size()));
  Findings findings;
  judge_problems(problems, findings);
  findings.report();
}
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceBackward,
                         testing::Values("sizes.txt", "dims.txt", "heads.txt", "features.txt", "layouts.txt",
                                         "mods.txt", "block_masks.txt", "entropy.txt"),
                         [](const auto& file) {
                           return std::string(file.param).substr(0, std::string(file.param).find('.'));
                         });

using DeviceBackwardRandom = OnDevice<testing::Test>;
TEST_F(DeviceBackwardRandom, EveryImplementationIsRight) {
  const rc::Gen<Problem> gen =
      rc::gen::exec([] { return backward_of_line(test::random_problem(), test::among(0, 29)); });
  std::vector<Problem> problems;
  rc::Random random(20);
  for (std::size_t drawn = 0; problems.size() < 150 && drawn < 1000; ++drawn) {
    Problem p = gen(random.split(), rc::kNominalSize).value();
    if (somebody_takes(p)) problems.push_back(std::move(p));
  }
  Findings findings;
  judge_problems(problems, findings);
  findings.report();
}

using DeviceBackwardRepeats = OnDevice<testing::Test>;
TEST_F(DeviceBackwardRepeats, AHundredTimesTheSameBits) {
  const cuda::ContextScope scope(cuda::device_facts(0));
  int compared = 0;
  for (const char* line :
       {"bwd b2 h8/2 s1100 d64 bf16 causal_bottom_right deterministic", "bwd b2 h4 s1000x700 d128 fp16 deterministic",
        "bwd b1 h4 s900 d256 bf16 deterministic", "bwd b2 h4/2 s600 d64 fp32 deterministic",
        "bwd b2 h4/2 s600 d128 bf16 bias=bf16:11qk sinks alibi grads=dq,dk,dv,dbias,dsinks,dalibi_slopes deterministic",
        "bwd h4/2 d128 bf16 varlen=1,300,0,665,1/300,200,7,0,500 causal_bottom_right deterministic"}) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    compared += expect_same_bits(inputs);
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
