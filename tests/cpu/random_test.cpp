// Random problems, shrunk by RapidCheck to the smallest that fails. RC_PARAMS=max_success=100000 searches on.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "support/random_problem.hpp"

namespace onepass::check {
namespace {

RC_GTEST_PROP(Random, EveryImplementationIsRight, ()) {
  const Problem p = test::random_problem(true);
  const auto seed = static_cast<std::uint64_t>(test::among(0, 1000));
  const Distribution distribution = test::random_distribution();
  RC_LOG() << to_string(p) << " seed " << seed << " " << name_of(distribution) << "\n";
  Inputs inputs = make_inputs(p, seed, distribution,
                              *rc::gen::element(Placement::middle, Placement::page_end, Placement::page_start));
  int takers = 0;
  for (const Implementation* row : plan::implementations()) {
    if (reference::is_reference(*row)) continue;
    const Verdict verdict = check(*row, inputs);
    takers += verdict.accepted;
    if (verdict.accepted && !verdict.right) RC_FAIL(text(row->name, ": ", verdict.sentence));
  }
  RC_ASSERT(takers > 0);
}

}  // namespace
}  // namespace onepass::check
