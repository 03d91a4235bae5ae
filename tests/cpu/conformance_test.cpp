// Every implementation of this machine on every line of tests/shapes, judged by the rule of
// docs/reference/conventions.md.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "shapes/shapes.hpp"

namespace onepass::check {
namespace {

class Conformance : public testing::TestWithParam<const char*> {};

// Each line is run with normal scores and with one other distribution, in turn; the buffers' placement takes turns too.
TEST_P(Conformance, EveryImplementation) {
  const auto lines = test::shapes(GetParam());
  std::map<std::string, int> accepted;
  int wrong = 0;
  for (std::size_t n = 0; n < lines.size() && wrong < 20; ++n) {
    const Problem problem = parse_problem(lines[n]);
    const auto implementations = plan::implementations(problem, 1);
    int takers = 0;
    for (Distribution distribution : {Distribution::normal, kDistributions[1 + n % 3]}) {
      Inputs inputs = make_inputs(problem, n, distribution, static_cast<Placement>(n % 3));
      for (const Implementation* row : implementations) {
        if (reference::is_reference(*row)) continue;
        const Verdict verdict = check(*row, inputs);
        takers += verdict.accepted;
        accepted[row->name] += verdict.accepted;
        if (!verdict.accepted || verdict.right) continue;
        ADD_FAILURE() << row->name << " \"" << lines[n] << "\" seed " << n << " " << name_of(distribution) << ": "
                      << verdict.sentence;
        ++wrong;
      }
    }
    EXPECT_GT(takers, 0) << "nobody takes \"" << lines[n] << "\"";
  }
  std::string summary;
  for (const auto& [name, count] : accepted) summary += name + " " + std::to_string(count) + "  ";
  RecordProperty("runs", summary);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Conformance,
                         testing::Values("sizes.txt", "long.txt", "decoding.txt", "dims.txt", "heads.txt", "fp8.txt",
                                         "features.txt", "layouts.txt", "cache.txt", "huge.txt", "merge.txt",
                                         "mods.txt", "block_masks.txt", "peers.txt", "quantize.txt", "softmax.txt",
                                         "flat_gemm.txt", "append.txt", "entropy.txt", "entropy_cache.txt", "tf32.txt"),
                         test::stem);

}  // namespace
}  // namespace onepass::check
