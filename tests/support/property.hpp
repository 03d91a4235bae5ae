// Properties of random problems. A failure prints the problem line and the command that repeats it ahead of everything
// that RapidCheck says.
#pragma once
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <exception>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "check/check.hpp"
#include "support/random_problem.hpp"

namespace onepass {

inline void showValue(const Problem& problem, std::ostream& out) { out << to_string(problem); }  // for RapidCheck

namespace test {

// The arguments of `onepass` that make the same inputs. Without an implementation it checks all of them.
inline std::string command_of(const Problem& problem, std::uint64_t seed, check::Distribution distribution,
                              std::string_view implementation = "") {
  return text("onepass check \"", to_string(problem), "\" --seed ", seed, " --distribution ",
              check::name_of(distribution), implementation.empty() ? "" : " --implementation ", implementation);
}
inline void showValue(const Case& c, std::ostream& out) {
  out << command_of(c.problem, c.seed, c.distribution) << " (inputs at the "
      << (c.placement == check::Placement::middle     ? "middle"
          : c.placement == check::Placement::page_end ? "end"
                                                      : "start")
      << " of a page)";
}

// The first lines of a failing test.
class Reproduction {
 public:
  void set(const Case& c, std::string_view implementation) {
    lines_ = text(to_string(c.problem), "\n", command_of(c.problem, c.seed, c.distribution, implementation), "\n");
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

// The name under which RapidCheck prints how to reproduce a failure. It prints nothing for an empty one.
inline std::string name_of_this_test() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  return text(info->test_suite_name(), "/", info->name());
}

// draw: makes a Case inside of a generator. property(case, reproduction) throws through RapidCheck's macros.
template <class Property>
void check_cases(Case (*draw)(), Property property, std::string id = name_of_this_test()) {
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = std::move(id);
  std::string smallest;
  const rc::detail::TestResult result = rc::detail::checkTestable(
      [&] {
        const Case c = *rc::gen::exec(draw);
        Reproduction reproduction;
        reproduction.set(c, "");
        try {
          property(c, reproduction);
        } catch (...) {  // RapidCheck's failures too; while it shrinks, each is smaller than the last
          smallest = reproduction.lines();
          throw;
        }
      },
      metadata);
  if (result.template is<rc::detail::SuccessResult>()) return;
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  FAIL() << smallest << message.str();
}

// Every one of the implementations that accepts the case is right, and at least one accepts it.
template <class Rows>
void expect_all_right(const Case& c, const Rows& rows, Reproduction& reproduction) {
  check::Inputs inputs = check::make_inputs(c.problem, c.seed, c.distribution, c.placement);
  int accepted = 0;
  for (const Implementation* row : rows) {
    reproduction.set(c, row->name);
    const check::Verdict verdict = check::check(*row, inputs);
    accepted += verdict.accepted;
    if (verdict.accepted && !verdict.right) RC_FAIL(text(row->name, ": ", verdict.sentence));
  }
  reproduction.set(c, "");
  RC_ASSERT(accepted > 0);
}

}  // namespace test
}  // namespace onepass
