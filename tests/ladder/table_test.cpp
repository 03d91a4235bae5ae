// The table as a program gets it, and the FlashAttention-1 paper's row.
#include "ladder/table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/sentence.hpp"

namespace onepass::ladder {
namespace {

std::map<std::string, Row> by_name(const std::vector<Row>& rows) {
  std::map<std::string, Row> m;
  for (const Row& r : rows) m[r.group + ": " + r.rung] = r;
  return m;
}

TEST(Table, EveryRungIsThereRightAndWithinFastMemory) {
  constexpr Index kSram = 20000;
  for (const bool causal : {false, true}) {
    std::vector<Index> seen;
    MeasureOptions options{causal, DType::f32, [&](Index done, Index all) {
                             EXPECT_EQ(all, 21);
                             seen.push_back(done);
                           }};
    const std::vector<Row> rows = measure(203, 24, kSram, options);
    ASSERT_EQ(rows.size(), 21u);
    EXPECT_EQ(seen.size(), 21u);
    EXPECT_EQ(seen.back(), 21);
    for (const Row& r : rows) {
      const bool fp8 = r.rung.find("FP8") != std::string::npos;
      EXPECT_LT(r.error, fp8 ? 1.0 : 1e-4) << r.group << ": " << r.rung;
      EXPECT_GT(r.error, 0) << r.rung << " compares something with itself";
      EXPECT_LE(r.fast_bytes, kSram) << r.rung;
      EXPECT_GT(r.counts.bytes_read, 0) << r.rung;
    }
  }
}

TEST(Table, EachRungBuysWhatItPromises) {
  auto rows = by_name(measure(256, 32, 16384));
  const Row &standard = rows["forward: standard attention"], &two = rows["forward: two-pass attention"],
            &one = rows["forward: one-pass attention"], &flash1 = rows["forward: FlashAttention-1"],
            &flash2 = rows["forward: FlashAttention-2"];
  EXPECT_EQ(standard.extra_bytes, 2 * 4 * 256 * 256);
  EXPECT_EQ(one.extra_bytes, 4 * 256);                // no N^2 memory
  EXPECT_LT(one.counts.bytes(), two.counts.bytes());  // one pass over K less
  EXPECT_LT(one.counts.matmul_flops, two.counts.matmul_flops);
  EXPECT_LT(flash1.counts.bytes(), standard.counts.bytes());  // tiles
  EXPECT_LT(flash1.counts.pointwise_flops, one.counts.pointwise_flops);
  EXPECT_LT(flash2.counts.bytes(), flash1.counts.bytes());  // O, m, l stay on chip
  EXPECT_LT(flash2.counts.pointwise_flops, flash1.counts.pointwise_flops);
  EXPECT_LT(rows["forward: FlashAttention-3, FP8 in full"].counts.bytes(), flash2.counts.bytes());
  EXPECT_EQ(rows["backward: FlashAttention-1"].counts.matmul_flops * 4,
            rows["backward: standard attention"].counts.matmul_flops * 5);
  EXPECT_LT(rows["softmax: online softmax"].counts.bytes(), rows["softmax: safe softmax"].counts.bytes());
}

TEST(Table, CausalRungsThatSkipTilesMoveAndComputeLess) {
  auto full = by_name(measure(256, 16, 8192)), causal = by_name(measure(256, 16, 8192, {true, DType::f32, {}}));
  for (const char* name :
       {"forward: FlashAttention-2", "forward: FlashAttention-3, two-stage", "backward: FlashAttention-2"}) {
    EXPECT_LT(causal[name].counts.bytes(), full[name].counts.bytes()) << name;
    EXPECT_LT(static_cast<double>(causal[name].counts.matmul_flops),
              0.7 * static_cast<double>(full[name].counts.matmul_flops))
        << name;
  }
  EXPECT_EQ(causal["forward: FlashAttention-1"].counts.matmul_flops,
            full["forward: FlashAttention-1"].counts.matmul_flops);
}

TEST(Table, NarrowStorageMovesHalfAndRoundsMore) {
  auto wide = by_name(measure(128, 16, 1 << 20)), narrow = by_name(measure(128, 16, 1 << 20, {false, DType::f16, {}}));
  const char* const name = "forward: standard attention";
  EXPECT_EQ(2 * narrow[name].counts.bytes(), wide[name].counts.bytes());
  EXPECT_GT(narrow[name].error, 10 * wide[name].error);
  EXPECT_LT(narrow[name].error, 0.01);
}

TEST(Table, SmallestSizesWork) {
  for (const Row& r : measure(1, 1, 4096)) EXPECT_LT(r.error, 0.1) << r.rung;
}

TEST(Table, ImpossibleSizesAreRefusedInASentence) {
  const auto sentence = [](Index n, Index d, Index sram, DType dtype = DType::f32) {
    return test::sentence_of([&] { measure(n, d, sram, {false, dtype, {}}); });
  };
  EXPECT_NE(sentence(0, 64, 1000).find("n must be 1 to 8192"), std::string::npos);
  EXPECT_NE(sentence(9000, 64, 1000).find("8192"), std::string::npos);
  EXPECT_NE(sentence(8, 64, 0).find("sram must be at least 1 byte (got 0)"), std::string::npos);
  EXPECT_NE(sentence(8, 64, 100).find("fast memory of 100 bytes"), std::string::npos);
  EXPECT_NE(sentence(8, 64, 100).find("attention"), std::string::npos) << "names the rung";
  EXPECT_NE(sentence(8, 0, 1000), "");
  EXPECT_NE(sentence(8, 8, 1000, DType::i32).find("int32"), std::string::npos);
}

TEST(Table, TextHasALinePerRung) {
  const std::vector<Row> rows = measure(16, 8, 8192);
  const std::string text = table_text(rows);
  for (const Row& r : rows) EXPECT_NE(text.find(r.rung), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<long>(rows.size()) + 2);
}

// 40.3 and 4.4 GB are the paper's; its GFLOPs column fits only if products count for one head in 16
// (docs/derivation.md).
TEST(Paper, TheMeterLandsOnTheTraffic) {
  const std::vector<PaperRow> rows = measure_paper();
  ASSERT_EQ(rows.size(), 2u);
  for (const PaperRow& r : rows)
    EXPECT_NEAR(static_cast<double>(r.counts.bytes()) * 1e-9, r.paper_gbytes, 0.05) << r.name;
  // From the closed forms: 300 and 32.625 times the bytes of one of Q, K, V, O.
  constexpr Index kTensor = Index{1024} * 1024 * 64 * 2;
  EXPECT_EQ(rows[0].counts.bytes(), 300 * kTensor);
  EXPECT_EQ(rows[1].counts.bytes() * 8, 261 * kTensor);
  EXPECT_NEAR(rows[0].gflops_as_in_paper(), 66.6, 0.05);
  EXPECT_EQ(rows[1].counts.matmul_flops * 6, rows[0].counts.matmul_flops * 7);
  EXPECT_NE(paper_text(rows).find("40.27"), std::string::npos);
}

}  // namespace
}  // namespace onepass::ladder
