#include <gtest/gtest.h>

#include <algorithm>

#include "distributed/plans.hpp"

namespace onepass::inline v0::context_parallel::test {
namespace {

using Pairs = std::vector<std::vector<int>>;  // [query][key]: how many calls have the pair

Pairs none(Index length) {
  return Pairs(static_cast<std::size_t>(length), std::vector<int>(static_cast<std::size_t>(length)));
}
std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// The pairs that attention() computes of one sequence of a call.
void add_sequence(Pairs& pairs, const Part& part, const Visibility& v, Range rows, Range keys,
                  const std::vector<Index>& q, const std::vector<Index>& k) {
  const Index offset = part.align == Align::bottom_right ? keys.size() - rows.size() : part.offset;
  for (Index i = 0; i < rows.size(); ++i) {
    for (Index j = 0; j < keys.size(); ++j) {
      const Index a = i + offset;
      const bool visible = !part.masked || ((v.left < 0 || j >= a - v.left) && (v.right < 0 || j <= a + v.right));
      if (visible) ++pairs[at(q[at(rows.begin + i)])][at(k[at(keys.begin + j)])];
    }
  }
}

void add(Pairs& pairs, const Part& part, const Visibility& v, const std::vector<Index>& q,
         const std::vector<Index>& k) {
  if (part.cu_rows.empty()) return add_sequence(pairs, part, v, part.rows, part.keys, q, k);
  ASSERT_EQ(part.cu_rows.size(), part.cu_keys.size());
  EXPECT_EQ(part.cu_rows.back(), part.rows.size());
  EXPECT_EQ(part.cu_keys.back(), part.keys.size());
  for (std::size_t d = 0; d + 1 < part.cu_rows.size(); ++d) {
    add_sequence(pairs, part, v, {part.rows.begin + part.cu_rows[d], part.rows.begin + part.cu_rows[d + 1]},
                 {part.keys.begin + part.cu_keys[d], part.keys.begin + part.cu_keys[d + 1]}, q, k);
  }
}

void expect_all(const Pairs& pairs, const Layout& layout, const Visibility& v) {
  const Index n = layout.length();
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      ASSERT_EQ(pairs[at(i)][at(j)], sees(v, i, j, n) ? 1 : 0) << i << " sees " << j << ", " << case_name(layout, v);
    }
  }
}

// Positions without gaps, and where they are.
void expect_places(const Part& part, const std::vector<Index>& q, const std::vector<Index>& k, bool gaps) {
  EXPECT_EQ(q[at(part.rows.begin)], part.row_positions.begin);
  EXPECT_EQ(k[at(part.keys.begin)], part.key_positions.begin);
  EXPECT_EQ(k[at(part.keys.end - 1)], part.key_positions.end - 1);
  EXPECT_TRUE(gaps || part.keys.size() == part.key_positions.size());
}

const std::vector<Needs> kNeeds{{}, {.packed = false}, {.distances = true}, {.packed = false, .distances = true}};

TEST(ContextParts, VisibilityIsWhatItSays) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    if (layout.ranks() != 2) return;
    const Index n = layout.length();
    for (Index begin = 0; begin < n; begin += 3) {
      for (Index end = begin + 1; end <= n; end += 4) {
        Index low = n, high = 0, pairs = 0, some = 0;
        const Range keys{n / 3, n - n / 5};
        for (Index i = begin; i < end; ++i) {
          for (Index j = 0; j < n; ++j) {
            if (!sees(v, i, j, n)) continue;
            low = std::min(low, j), high = std::max(high, j + 1), ++pairs;
            some += keys.begin <= j && j < keys.end;
          }
        }
        EXPECT_EQ(v.seen({begin, end}, n), (Range{low, high}));
        EXPECT_EQ(v.pairs({begin, end}, {0, n}, n), pairs);
        ASSERT_EQ(v.pairs({begin, end}, keys, n), some) << case_name(layout, v);
      }
    }
  });
}

TEST(ContextParts, OfGatherAreTheVisiblePairsOnce) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    for (Needs needs : kNeeds) {
      for (const bool by_unit : {false, true}) {
        needs.by_unit = by_unit;
        Pairs pairs = none(layout.length());
        for (Index r = 0; r < layout.ranks(); ++r) {
          const std::vector<Index> q = positions_of(layout.runs(r)), k = positions_of(gathered(layout, v, r));
          std::vector<int> calls(q.size());
          for (const Part& part : gather_parts(layout, v, r, needs)) {
            add(pairs, part, v, q, k);
            expect_places(part, q, k, false);
            EXPECT_TRUE(part.own);
            EXPECT_TRUE(needs.packed || part.cu_rows.empty());
            EXPECT_TRUE(part.masked || !needs.distances);
            for (Index i = part.rows.begin; i < part.rows.end; ++i) ++calls[at(i)];
          }
          ASSERT_EQ(calls, std::vector<int>(q.size(), 1)) << case_name(layout, v);
        }
        expect_all(pairs, layout, v);
      }
    }
  });
}

// Dropout draws for four keys at a time.
TEST(ContextParts, OfGatherBeginAtMultiplesInTheirDocument) {
  int moved = 0;
  for_each_case([&](const Layout& layout, Visibility v) {
    const Visibility exact = v;
    v.key_multiple = 4;
    Pairs pairs = none(layout.length());
    for (Index r = 0; r < layout.ranks(); ++r) {
      const std::vector<Index> q = positions_of(layout.runs(r)), k = positions_of(gathered(layout, v, r));
      for (const Part& part : gather_parts(layout, v, r, {.packed = false, .distances = true})) {
        add(pairs, part, v, q, k);
        expect_places(part, q, k, false);
        EXPECT_EQ((part.key_positions.begin - part.document) % 4, 0) << case_name(layout, v);
        moved += part.key_positions.begin != exact.seen(part.row_positions, layout.length()).begin;
      }
    }
    expect_all(pairs, layout, v);
  });
  EXPECT_GT(moved, 0);
}

// by_unit: the calls of a unit are the same for any number of ranks.
TEST(ContextParts, OfAUnitDoNotDependOnTheRanks) {
  const Visibility v{5, 2, {0, 3, 20, 41}};
  std::vector<std::vector<std::pair<Range, Range>>> all;
  for (const Index ranks : {1, 2, 3, 4, 8}) {
    const Layout layout = Layout::zigzag(41, ranks, 8);
    std::vector<std::pair<Range, Range>> calls;
    for (Index r = 0; r < ranks; ++r) {
      for (const Part& p : gather_parts(layout, v, r, {.by_unit = true}))
        calls.emplace_back(p.row_positions, p.key_positions);
    }
    std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    all.push_back(calls);
  }
  for (const auto& calls : all) EXPECT_EQ(calls, all.front());
}

TEST(ContextParts, OfARingAreTheVisiblePairsOnce) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    for (const Needs& needs : kNeeds) {
      Pairs pairs = none(layout.length());
      for (Index r = 0; r < layout.ranks(); ++r) {
        const std::vector<Index> q = positions_of(layout.runs(r));
        std::vector<int> own(q.size());
        for (Index source = 0; source < layout.ranks(); ++source) {
          const std::vector<Index> k = positions_of(layout.runs(source));
          const std::vector<Part> parts = ring_parts(layout, v, r, source, needs);
          for (const Part& part : parts) {
            add(pairs, part, v, q, k);
            expect_places(part, q, k, !needs.distances);
            for (Index i = part.rows.begin; i < part.rows.end; ++i) own[at(i)] += part.own;
          }
          const Index step = (r - source + layout.ranks()) % layout.ranks();
          EXPECT_TRUE(parts.empty() || step <= ring_steps(layout, v, source)) << case_name(layout, v);
          EXPECT_EQ(parts.empty(), moves(layout, v, source, r).empty());
        }
        ASSERT_EQ(own, std::vector<int>(q.size(), 1)) << case_name(layout, v);
      }
      expect_all(pairs, layout, v);
    }
  });
}

// A causal mask and a rank's two halves: one call with each shard, without a mask but for its own.
TEST(ContextParts, ZigzagIsOneCallAStep) {
  const Layout layout = Layout::zigzag(64, 4);
  for (Index r = 0; r < 4; ++r) {
    for (Index source = 0; source < 4; ++source) {
      const std::vector<Part> parts = ring_parts(layout, {-1, 0}, r, source);
      ASSERT_EQ(parts.size(), 1u) << r << " " << source;
      EXPECT_EQ(parts.front().masked, r == source);
    }
  }
}

TEST(ContextMoves, BringEveryKeyThatIsSeenAndNoOther) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    const Index n = layout.length();
    for (Index r = 0; r < layout.ranks(); ++r) {
      const std::vector<Index> k = positions_of(gathered(layout, v, r)), q = positions_of(layout.runs(r));
      std::vector<int> came(k.size());
      for (Index source = 0; source < layout.ranks(); ++source) {
        const std::vector<Index> theirs = positions_of(layout.runs(source));
        for (const Move& move : moves(layout, v, source, r)) {
          ASSERT_EQ(move.from.size(), move.to.size());
          for (Index i = 0; i < move.from.size(); ++i) {
            EXPECT_EQ(theirs[at(move.from.begin + i)], k[at(move.to.begin + i)]);
            ++came[at(move.to.begin + i)];
          }
        }
      }
      ASSERT_EQ(came, std::vector<int>(k.size(), 1)) << case_name(layout, v);
      for (const Index j : k) {
        EXPECT_TRUE(std::any_of(q.begin(), q.end(), [&](Index i) { return sees(v, i, j, n); })) << case_name(layout, v);
      }
    }
  });
}

// The moves of a rank's nodes: together they are those of all its units.
TEST(ContextMoves, OfNodesAreWhatTheirUnitsSee) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    for (Index r = 0; r < layout.ranks(); ++r) {
      const std::vector<Index> k = positions_of(gathered(layout, v, r));
      std::vector<int> by_node(k.size()), by_unit(k.size());
      for (const Node& node : nodes_of(layout, r)) {
        for (Index source = 0; source < layout.ranks(); ++source) {
          for (const Move& move : moves(layout, v, source, r, node)) {
            for (Index j = move.to.begin; j < move.to.end; ++j) by_node[at(j)] = 1;
          }
        }
      }
      for (const Part& part : gather_parts(layout, v, r, {.by_unit = true})) {
        for (Index j = part.keys.begin; j < part.keys.end; ++j) by_unit[at(j)] = 1;
      }
      ASSERT_EQ(by_node, by_unit) << case_name(layout, v);
    }
  });
}

}  // namespace
}  // namespace onepass::inline v0::context_parallel::test
