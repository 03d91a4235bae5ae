// What the benchmark counts and how it talks to peers. It times nothing: speed is shown by `onepass bench` itself.
#include <gtest/gtest.h>

#include "onepass/bench/cell.hpp"
#include "onepass/bench/peaks.hpp"
#include "onepass/error.hpp"

namespace onepass::bench {
namespace {

TEST(Bench, ReadsCells) {
  EXPECT_FALSE(parse_cell("  # a comment"));
  EXPECT_FALSE(parse_cell(""));
  const auto cell = parse_cell("2 | cpu.flash.avx2 | fwd b1 h2 s8 d16 fp32 ");
  ASSERT_TRUE(cell);
  EXPECT_EQ(cell->threads, 2);
  EXPECT_EQ(cell->implementation, "cpu.flash.avx2");
  EXPECT_EQ(cell->problem.heads_q, 2);
  EXPECT_EQ(parse_cell("1 | - | fwd b1 h1 s8 d8 fp32")->implementation, "");
  for (const char* line : {"fwd b1", "0 | - | fwd b1 h1 s8 d8 fp32", "1 | - | nonsense"}) EXPECT_THROW(parse_cell(line), Error) << line;
}

TEST(Bench, CountsTheWorkThatTheBandShows) {
  EXPECT_EQ(visible_pairs(parse_problem("fwd b2 h3 s10x7 d8 fp32")), 2 * 3 * 70);
  EXPECT_EQ(visible_pairs(parse_problem("fwd b1 h1 s8 d8 fp32 causal_top_left")), 36);
  EXPECT_EQ(visible_pairs(parse_problem("fwd b1 h1 s8 d8 fp32 window=1:1")), 8 * 3 - 2);
  EXPECT_EQ(visible_pairs(parse_problem("fwd h2 d8 fp32 varlen=3,0,5/2,4,5")), 2 * (6 + 0 + 25));
}

TEST(Bench, KnowsWhosePeakToTake) {
  Isa isa;
  EXPECT_TRUE(isa_of("cpu.flash.avx2", isa));
  EXPECT_EQ(isa, Isa::avx2);
  EXPECT_TRUE(isa_of("cpu.amx.bf16", isa));
  EXPECT_EQ(isa, Isa::avx512);
  EXPECT_FALSE(isa_of("reference", isa));
}

TEST(Bench, MeasuresACellBesideAPeer) {
  PeerProcess peer("while read line; do echo '{\"peer\": \"slow\", \"median_s\": 1.0}'; done");   // a second for everything
  const Effort effort{2, 0.001, {"slow"}};
  const CellResult r = run_cell({1, "reference", parse_problem("fwd b1 h1 s16 d8 fp32")}, effort, &peer);
  EXPECT_EQ(r.implementation, "reference");
  EXPECT_GT(r.median_s, 0);
  EXPECT_LE(r.best_s, r.median_s);
  EXPECT_EQ(r.flops, 2.0 * 16 * 16 * 16);
  EXPECT_EQ(r.bytes, 16.0 * 16 * 4);
  ASSERT_EQ(r.peers.size(), 1u);
  EXPECT_EQ(r.peers[0].median_s, 1.0);
}

TEST(Bench, SaysWhyAPeerHasNoNumber) {
  const CellSpec spec{1, "reference", parse_problem("fwd b1 h1 s4 d8 fp32")};
  const Effort effort{1, 0.001, {"p"}};
  PeerProcess refuses("while read line; do echo '{\"refused\": \"no such head dim\"}'; done");
  EXPECT_EQ(run_cell(spec, effort, &refuses).peers[0].note, "refused: no such head dim");
  PeerProcess gone("true");
  EXPECT_EQ(run_cell(spec, effort, &gone).peers[0].note, "the peer process ended");
  EXPECT_EQ(run_cell(spec, effort, nullptr).peers[0].note, "no peer process");
}

}  // namespace
}  // namespace onepass::bench
