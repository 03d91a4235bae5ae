// cpu.decode.*: how it cuts a call, and what it refuses. That it is right: conformance_test.cpp, shapes/few_rows.txt.
#include "cpu/decode/decode.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace onepass::cpu {
namespace {

std::vector<const Implementation*> here() {
  std::vector<const Implementation*> rows;
  for (const Implementation& row : decode_implementations()) {
    if (why_not(row, parse_problem("fwd b1 h1 s1 d8 fp32")).empty()) rows.push_back(&row);
  }
  return rows;
}

TEST(Decode, ThereIsARowForEveryInstructionSet) {
  ASSERT_GE(decode_implementations().size(), 1u);
  EXPECT_FALSE(here().empty());
}

TEST(Decode, CutsByShapeOnly) {
  const auto cut = [](const char* line) {
    const Problem p = parse_problem(line);
    return decode_cut(p, {p.seq_q, p.seq_k});
  };
  EXPECT_EQ(cut("fwd b1 h32/8 s1x8192 d128 fp32").splits.count, 8);
  EXPECT_EQ(cut("fwd b64 h32/8 s1x8192 d128 fp32").splits.count, 1);
  EXPECT_FALSE(cut("fwd b1 h32/8 s1x8192 d128 fp32").keys_outer);
  EXPECT_TRUE(cut("fwd b1 h32/8 s1x8192 d128 fp32 layout=bshd").keys_outer);
  EXPECT_EQ(cut("fwd b1 h32/8 s1x8192 d128 fp32 layout=bshd").heads, 8);
  // a window leaves few keys to share
  EXPECT_EQ(cut("fwd b1 h1 s1x8192 d128 fp32 window=99:0").splits.count, 1);
  for (std::int64_t keys = 0; keys < 5000; keys += 37) {
    const DecodeCut c = cut(("fwd b1 h2 s1x" + std::to_string(keys) + " d64 bf16").c_str());
    EXPECT_EQ(c.chunk % c.tile, 0);
    EXPECT_GE(c.splits.count * c.splits.chunk, keys);
  }
}

TEST(Decode, RefusesManyRowsInASentence) {
  const Implementation& row = *here().front();
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h34/2 s1x64 d64 fp32")),
            "supports at most 16 rows (seq_q x heads_q / heads_kv) per K/V head (got 17)");
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h16/2 s2x64 d64 fp32")), "");
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h8/2 s2x64 d64 fp32 cuda")), "it computes on the CPU only");
}

}  // namespace
}  // namespace onepass::cpu
