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

// Each line is run with normal scores and with one other distribution, in turn, or in two files with more of them; the
// buffers' placement takes turns too.
TEST_P(Conformance, EveryImplementation) {
  const auto lines = test::shapes(GetParam());
  const std::string_view file = GetParam();
  const bool few = file == "few_rows.txt", many = file == "prompts.txt";
  const std::size_t all = few ? 4 : many ? 3 : 1;
  const std::string_view takes_all = few ? "cpu.decode." : many ? "cpu.flash." : "nobody";
  std::map<std::string, int> accepted;
  int wrong = 0;
  for (std::size_t n = 0; n < lines.size() && wrong < 20; ++n) {
    const Problem problem = parse_problem(lines[n]);
    const auto implementations = plan::implementations(problem, 1);
    int takers = 0;
    for (std::size_t d = 0; d < std::size(kDistributions); ++d) {
      if (d >= all && (all > 1 || d != 1 + n % 3)) continue;
      const Distribution distribution = kDistributions[d];
      Inputs inputs = make_inputs(problem, n, distribution, static_cast<Placement>((all > 1 ? n + d : n) % 3));
      for (const Implementation* row : implementations) {
        if (reference::is_reference(*row)) continue;
        const Verdict verdict = check(*row, inputs);
        takers += verdict.accepted;
        accepted[row->name] += verdict.accepted;
        const bool takes_this =
            std::string_view(row->name).starts_with(takes_all) && why_not(*row, parse_problem("s1")).empty();
        EXPECT_TRUE(verdict.accepted || !takes_this) << row->name << " refuses \"" << lines[n] << "\"";
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
                                         "flat_gemm.txt", "append.txt", "entropy.txt", "entropy_cache.txt", "tf32.txt",
                                         "few_rows.txt", "prompts.txt"),
                         test::stem);

}  // namespace
}  // namespace onepass::check
