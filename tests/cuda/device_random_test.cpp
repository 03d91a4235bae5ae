// Random problems on a device, from the generator of tests/cpu/random_test.cpp. Every problem asks for kernels of its
// own, a second or so each to compile, so there are few of them, and what fails is not shrunk.
#include <cstdlib>
#include <cstring>
#include <random>

#include "device.hpp"
#include "support/property.hpp"

namespace onepass::check {
namespace {

constexpr std::size_t kProblems = 40;  // that some implementation takes

// RC_PARAMS="seed=N", as for RapidCheck's own tests; else another one in every run.
std::uint64_t chosen_seed() {
  const char* given = std::getenv("RC_PARAMS");
  const char* at = given ? std::strstr(given, "seed=") : nullptr;
  return at ? std::strtoull(at + 5, nullptr, 10) : std::random_device()();
}

using test::Case;

std::vector<Case> cases(std::uint64_t seed) {
  std::vector<Case> found;
  const rc::Gen<Case> gen = rc::gen::exec([] { return test::random_case(test::random_problem()); });
  for (rc::Random random(seed); found.size() < kProblems;) {
    Case c = gen(random.split(), rc::kNominalSize).value();
    // A bound of 0 rows says "unknown" where only the device has the lengths: the tokens are the bound then.
    const bool unknown = c.problem.varlen && c.problem.seq_q == 0 && c.problem.total_q > 0;
    if (!unknown && !takers_of(on_device(c.problem)).empty()) found.push_back(std::move(c));
  }
  return found;
}

using DeviceRandom = OnDevice<testing::Test>;
TEST_F(DeviceRandom, EveryImplementationIsRight) {
  const std::uint64_t seed = chosen_seed();
  std::printf("  %zu random problems; RC_PARAMS=\"seed=%llu\" draws the same\n", kProblems,
              static_cast<unsigned long long>(seed));
  const std::vector<Case> drawn = cases(seed);
  Findings findings;
  in_parallel(drawn.size(), [&](std::size_t n) {
    const Case& c = drawn[n];
    const std::string what = test::command_of(on_device(c.problem), c.seed, c.distribution);
    try {
      Inputs inputs = make_inputs(c.problem, c.seed, c.distribution);
      findings.judge(inputs, what);
    } catch (const std::exception& e) {
      findings.wrong(what + ": " + e.what());
    }
  });
  findings.report();
}

}  // namespace
}  // namespace onepass::check
