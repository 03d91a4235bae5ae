// Random problems, shrunk by RapidCheck to the smallest that fails. RC_PARAMS=max_success=100000 searches on.
#include <gtest/gtest-spi.h>

#include <string_view>

#include "support/cpu_kernels.hpp"
#include "support/property.hpp"

namespace onepass::check {
namespace {

TEST(Random, EveryImplementationIsRight) {
  const auto rows = test::cpu_kernels(kForward);
  test::check_cases([] { return test::random_case(test::random_problem(true)); },
                    [&](const test::Case& c, test::Reproduction& r) { test::expect_all_right(c, rows, r); });
}

// The lines that a failure begins with are a valid problem and a command of the tool.
TEST(Random, AFailureBeginsWithTheProblemAndACommand) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    test::check_cases([] { return test::random_case(test::random_problem()); },
                      [](const test::Case&, test::Reproduction&) { RC_FAIL("as meant"); }, "");
  }
  ASSERT_EQ(results.size(), 1);
  const std::string message = results.GetTestPartResult(0).message();
  const std::size_t at = message.find("fwd "), end = message.find('\n', at);
  const std::string line = message.substr(at, end - at);
  EXPECT_LE(at, std::string_view("Failed\n").size()) << message;
  EXPECT_EQ(to_string(parse_problem(line)), line);
  EXPECT_EQ(message.substr(end + 1).find("onepass check \"" + line + "\" --seed "), 0u) << message;
  EXPECT_EQ(message.find("<??"
                         "?>"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace onepass::check
