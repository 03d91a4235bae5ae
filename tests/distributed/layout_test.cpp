#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "distributed/plans.hpp"
#include "onepass/error.hpp"
#include "support/sentence.hpp"

namespace onepass::inline v0::context_parallel::test {
namespace {

TEST(ContextLayout, HoldsEveryPositionOnceInAscendingOrder) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    if (v.left >= 0 || v.right >= 0) return;
    std::vector<Index> held;
    for (Index r = 0; r < layout.ranks(); ++r) {
      const std::vector<Index> mine = positions_of(layout.runs(r));
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
      EXPECT_EQ(mine, positions_of(layout.units(r)));
      EXPECT_EQ(static_cast<Index>(mine.size()), layout.count(r));
      held.insert(held.end(), mine.begin(), mine.end());
    }
    std::sort(held.begin(), held.end());
    std::vector<Index> all(static_cast<std::size_t>(layout.length()));
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(held, all) << case_name(layout, v);
  });
}

TEST(ContextLayout, ZigzagPairsTheEnds) {
  const Layout layout = Layout::zigzag(16, 2);
  EXPECT_EQ(layout.runs(0), (std::vector<Piece>{{{0, 4}, {0, 4}}, {{12, 16}, {4, 8}}}));
  EXPECT_EQ(layout.runs(1), (std::vector<Piece>{{{4, 12}, {0, 8}}}));
  const std::vector<Index> pairs = work(layout, {-1, 0});
  EXPECT_EQ(pairs[0], pairs[1]);
  EXPECT_EQ(pairs[0] + pairs[1], 16 * 17 / 2);
}

TEST(ContextLayout, OfAnyLengthAreNearlyEqual) {
  for (Index length = 0; length < 40; ++length) {
    for (Index ranks = 1; ranks < 9; ++ranks) {
      for (const Layout& layout : {Layout::contiguous(length, ranks), Layout::zigzag(length, ranks)}) {
        for (Index r = 0; r < ranks; ++r) {
          EXPECT_LE(
              std::abs(static_cast<double>(layout.count(r)) - static_cast<double>(length) / static_cast<double>(ranks)),
              2.0);
        }
      }
    }
  }
  const Layout aligned = Layout::zigzag(1000, 4, 0, 64);
  for (const Index cut : aligned.cuts()) EXPECT_TRUE(cut % 64 == 0 || cut == 1000) << cut;
}

// Long documents are cut in pairs, short ones fill what is light: equal positions and equal work.
TEST(ContextLayout, DocumentsAreEqualWork) {
  const std::vector<Index> documents{0, 4096, 4100, 4200, 12000, 12007, 16384};
  const Layout layout = Layout::documents(documents, 4);
  const std::vector<Index> pairs = work(layout, {-1, 0, documents});
  const auto [low, high] = std::minmax_element(pairs.begin(), pairs.end());
  EXPECT_LT(static_cast<double>(*high), 1.01 * static_cast<double>(*low));
  for (Index r = 0; r < 4; ++r) EXPECT_NEAR(static_cast<double>(layout.count(r)), 4096, 8);
  EXPECT_EQ(Layout::documents({0}, 3).length(), 0);
}

std::vector<Index> positions_of(const std::vector<Piece>& pieces) {
  std::vector<Index> all;
  for (const Piece& piece : pieces)
    for (Index i = piece.positions.begin; i < piece.positions.end; ++i) all.push_back(i);
  return all;
}

// The sentence of the error that f throws.
std::string refused(const std::function<void()>& f) {
  const auto [code, sentence] = onepass::test::said_by(f);
  EXPECT_EQ(code, ErrorCode::bad_value);
  return sentence;
}

// The shard of a node has the positions of its ranks, and each rank's rows of it are the rank's own positions.
TEST(ContextLayout, NodesHoldWhatTheirRanksHold) {
  for_each_case([](const Layout& layout, const Visibility&) {
    for (Index within = 1; within <= layout.ranks(); ++within) {
      if (layout.ranks() % within != 0) continue;
      for (Index node = 0; node < layout.ranks() / within; ++node) {
        const NodeLayouts found = node_layouts(layout, within, node);
        ASSERT_EQ(found.nodes.ranks(), layout.ranks() / within);
        ASSERT_EQ(found.ranks.ranks(), within);
        ASSERT_EQ(found.ranks.length(), found.nodes.count(node));
        const std::vector<Index> shard = positions_of(found.nodes.runs(node));
        for (Index r = 0; r < within; ++r) {
          std::vector<Index> mine;
          for (const Index row : positions_of(found.ranks.runs(r)))
            mine.push_back(shard[static_cast<std::size_t>(row)]);
          ASSERT_EQ(mine, positions_of(layout.runs(node * within + r)));
        }
      }
    }
  });
  EXPECT_EQ(refused([] { static_cast<void>(node_layouts(Layout::contiguous(8, 6), 4, 0)); }),
            "the ranks of a node must divide 6, the layout's ranks (got 4)");
  EXPECT_EQ(refused([] { static_cast<void>(node_layouts(Layout::contiguous(8, 6), 3, 2)); }),
            "node must be from 0 to 1 (got 2)");
}

TEST(ContextLayout, RefusesWhatIsNoLayout) {
  EXPECT_EQ(refused([] { Layout({0, 4, 3}, {0, 1}, {0, 2}); }),
            "cuts must be at least two positions that ascend from 0 to at most 2147483647");
  EXPECT_EQ(refused([] { Layout({0, 3, 4}, {0, 0}, {0, 2}); }), "order must list each of the 2 units once");
  EXPECT_EQ(refused([] { Layout({0, 3, 4}, {0, 1}, {0, 1}); }),
            "shares must ascend from 0 to the number of units, 2, with one more entry than ranks");
  EXPECT_EQ(refused([] { Layout::zigzag(8, 2, 3); }), "units of a zigzag layout must be an even number (got 3)");
  EXPECT_EQ(refused([] { Layout::contiguous(-1, 2); }), "length must be from 0 to 2147483647 (got -1)");
  EXPECT_EQ(refused([] { Layout::contiguous(8, 0); }), "ranks must be from 1 to 524288 (got 0)");
  EXPECT_EQ(refused([] { static_cast<void>(Layout::contiguous(8, 2).runs(2)); }), "rank must be from 0 to 1 (got 2)");
  EXPECT_EQ(refused([] { static_cast<void>(work(Layout::contiguous(8, 2), {-1, 0, {0, 9}})); }),
            "documents must ascend from 0 to the length of the sequence, 8");
}

}  // namespace
}  // namespace onepass::inline v0::context_parallel::test
