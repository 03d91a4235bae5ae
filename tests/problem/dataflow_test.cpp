// The choice of a linear's kernel, and the file that crossovers are kept in.
#include "problem/gemm/dataflow.hpp"

#include <gtest/gtest.h>

#include "onepass/error.hpp"

namespace onepass {
namespace {

TEST(Dataflow, ChoosesByMeasuredCrossovers) {
  const std::vector<Timing> timings = {
      {1, 1.0, 1.6, 5.0}, {2, 1.9, 1.6, 5.0}, {4, 3.7, 1.7, 5.0}, {32, 29, 5.5, 5.1}, {64, 58, 9, 5.3}};
  const Crossover at = crossover(timings);
  EXPECT_EQ(at.m1, 2);
  EXPECT_EQ(at.m2, 32);
  for (const Timing& t : timings) {
    const double chosen = choose(t.m, at) == Dataflow::gemv        ? t.gemv
                          : choose(t.m, at) == Dataflow::flat_gemm ? t.flat_gemm
                                                                   : t.gemm;
    EXPECT_EQ(chosen, std::min({t.gemv, t.flat_gemm, t.gemm})) << t.m;
  }
  EXPECT_EQ(choose(1 << 20, crossover({{1, 1, 2, 3}, {2, 1, 2, 3}})), Dataflow::gemv);  // nothing ever beat it
}

TEST(Dataflow, AKernelThatTakesNoSuchNumberOfRowsNeverWins) {
  const double none = Timing::kNone;
  const Crossover at = crossover({{1, 1, 2, 3}, {4, none, 2, 3}, {64, none, 5, 4}, {128, none, none, 4}});
  EXPECT_EQ(at, (Crossover{4, 64}));
  EXPECT_EQ(crossover({{1, none, 2, none}, {8, none, 3, none}}), (Crossover{1, Crossover::kNever}));
}

TEST(Dataflow, TheFileIsReadAsItWasWritten) {
  const std::vector<CrossoverRow> rows = {
      {"NVIDIA H200", DType::bf16, 4096, 11008, {2, 48}},
      {"cpu, 2 threads", DType::f32, 1, 0, {1, Crossover::kNever}},
      {"cpu, 1 thread", DType::f16, 7, 8, {Crossover::kNever, Crossover::kNever}},
  };
  EXPECT_EQ(parse_crossovers(to_text(rows), "f").rows, rows);
  EXPECT_EQ(parse_crossovers(to_text(rows), "f").refusal, "");
  EXPECT_TRUE(parse_crossovers("", "f").rows.empty());
  EXPECT_TRUE(parse_crossovers("# nothing\n\n  \t\r\n", "f").rows.empty());
  EXPECT_EQ(parse_crossovers("#\n a b |bf16| 2 |3 | 4|-", "f").rows,
            (std::vector<CrossoverRow>{{"a b", DType::bf16, 2, 3, {4, Crossover::kNever}}}));
}

TEST(Dataflow, ALineThatCannotBeReadIsNamedAndTheOthersAreUsed) {
  for (const char* line : {"a | bf16 | 1 | 2 | 3", "a | bf16 | 1 | 2 | 3 | 4 | 5", " | bf16 | 1 | 2 | 3 | 4",
                           "a | int8 | 1 | 2 | 3 | 4", "a | bf16 | -1 | 2 | 3 | 4", "a | bf16 | 1 | - | 3 | 4",
                           "a | bf16 | 1 | 2 | 0 | 4", "a | bf16 | 1 | 2 | 3 | 4x", "a"}) {
    const std::string good = "a | bf16 | 1 | 2 | 3 | 4\n", bad = std::string(line) + "\n";
    const Crossovers one = parse_crossovers("# head\n" + bad + good, "linear.txt");
    EXPECT_EQ(one.rows, parse_crossovers(good, "").rows) << line;
    EXPECT_EQ(one.refusal.find("line 2 of linear.txt cannot be read; a line must be "), 0u) << one.refusal;
    EXPECT_EQ(parse_crossovers(bad + good + bad, "f").refusal.find("line 1 and 1 more of f cannot be read"), 0u)
        << line;
  }
}

}  // namespace
}  // namespace onepass
