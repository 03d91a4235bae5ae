// `onepass ladder`: text and JSON say the same, and bad sizes are refused in a sentence.
#include <nlohmann/json.hpp>

#include "tools/cli.hpp"

namespace onepass::test {
namespace {

using nlohmann::json;

TEST(CliLadder, JsonHoldsEveryRung) {
  const Result r =
      onepass({"ladder", "--n", "64", "--d", "16", "--sram", "16KiB", "--causal", "--dtype", "bf16", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["sram_bytes"], 16384);
  EXPECT_EQ(j["causal"], true);
  EXPECT_EQ(j["dtype"], "bf16");
  ASSERT_EQ(j["rungs"].size(), 21u);
  for (const json& rung : j["rungs"]) {
    EXPECT_EQ(rung["bytes"], rung["bytes_read"].get<long>() + rung["bytes_written"].get<long>());
    EXPECT_LE(rung["fast_bytes"], 16384) << rung["rung"];
    EXPECT_GT(rung["flops"], 0) << rung["rung"];
    EXPECT_TRUE(rung["max_error"].is_number()) << rung["rung"];
  }
}

TEST(CliLadder, TextNamesTheRungsAndTheMachine) {
  const Result r = onepass({"ladder", "--n", "32", "--d", "8", "--sram", "8KiB"});
  ASSERT_EQ(r.status, 0) << r.err;
  for (const char* text : {"n = 32, d = 8, fp32, fast memory 8192 bytes", "safe softmax", "FlashAttention-3, two-stage",
                           "FlashDecoding++"}) {
    EXPECT_NE(r.out.find(text), r.out.npos) << text;
  }
}

TEST(CliLadder, PaperRowOnAnotherMachine) {
  const Result r = onepass({"ladder", "--paper", "--sram", "192KiB", "--fast", "192KiB", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json rows = json::parse(r.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(rows[1]["bytes"], 5.5e9);  // the paper's tiles do not fit into 192 KiB: more visits
  EXPECT_LT(rows[1]["bytes"], 6e9);
}

TEST(CliLadder, BadSizesAreRefused) {
  const auto refused = [](const std::vector<std::string>& more, const char* sentence) {
    std::vector<std::string> all{"ladder"};
    all.insert(all.end(), more.begin(), more.end());
    const Result r = onepass(all);
    EXPECT_EQ(r.status, 2) << sentence;
    EXPECT_NE(r.err.find(sentence), r.err.npos) << r.err;
    EXPECT_EQ(r.out, "");
  };
  refused({"--n", "0"}, "n must be 1 to 8192");
  refused({"--n", "100000"}, "8192");
  refused({"--d", "0"}, "dim_qk must be 1 to 512");
  refused({"--sram", "10"}, "fast memory of 10 bytes");
  refused({"--sram", "much"}, "--sram");
  refused({"--sram", "-5"}, "the fast memory must be at most");
  refused({"--dtype", "int32"}, "int32");
  refused({"--fast", "100KiB"}, "--paper");
  refused({"--fp8", "--paper"}, "excludes");
}

}  // namespace
}  // namespace onepass::test
