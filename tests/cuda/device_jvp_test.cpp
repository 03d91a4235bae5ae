// Every CUDA kernel of the forward mode on the forward mode of every line of tests/shapes, and of random problems.
#include <rapidcheck.h>

#include "device.hpp"
#include "support/jvp_problem.hpp"
#include "support/property.hpp"

namespace onepass::check {
namespace {

constexpr Distribution kScores[] = {Distribution::normal, Distribution::rising, Distribution::one_hot};

bool somebody_takes(Problem p) {
  p.device = {DeviceKind::cuda, 0};
  return !takers_of(p).empty();
}
void judge_problems(const std::vector<Problem>& problems, Findings& findings) {
  in_parallel(problems.size(), [&](std::size_t n) {
    const Distribution scores = kScores[n % 3];
    Problem twin = problems[n];
    twin.device = {DeviceKind::cuda, 0};
    const std::string what = test::command_of(twin, n, scores);
    try {
      if (!somebody_takes(problems[n])) return;
      Inputs inputs = make_inputs(problems[n], n, scores);
      findings.judge(inputs, what);
    } catch (const std::exception& e) {
      findings.wrong(what + ": " + e.what());
    }
  });
}

class DeviceJvp : public OnDevice<testing::TestWithParam<const char*>> {};
TEST_P(DeviceJvp, EveryImplementationIsRight) {
  std::vector<Problem> problems;
  for (const std::string& line : test::shapes(GetParam())) {
    const std::size_t n = problems.size();
    problems.push_back(test::jvp_of(parse_problem(line), n % 3 != 1, n % 4 != 2));
  }
  Findings findings;
  judge_problems(problems, findings);
  findings.report();
}
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceJvp,
                         testing::Values("sizes.txt", "features.txt", "layouts.txt", "mods.txt", "block_masks.txt"),
                         [](const auto& file) {
                           return std::string(file.param).substr(0, std::string(file.param).find('.'));
                         });

using DeviceJvpRandom = OnDevice<testing::Test>;
TEST_F(DeviceJvpRandom, EveryImplementationIsRight) {
  const rc::Gen<Problem> gen =
      rc::gen::exec([] { return test::jvp_of(test::random_problem(), test::flip(), test::flip()); });
  std::vector<Problem> problems;
  rc::Random random(31);
  for (std::size_t drawn = 0; problems.size() < 150 && drawn < 1000; ++drawn) {
    Problem p = gen(random.split(), rc::kNominalSize).value();
    if (somebody_takes(p)) problems.push_back(std::move(p));
  }
  Findings findings;
  judge_problems(problems, findings);
  findings.report();
}

}  // namespace
}  // namespace onepass::check
