#include "algebra/tree.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace onepass {
namespace {

constexpr int kMost = std::numeric_limits<int>::max(), kLeast = std::numeric_limits<int>::min();

// Parents of n drafts, some of them numbers that say that there is none; as far as `stride` apart.
std::vector<int> random_parents(std::mt19937& engine, int n, int stride) {
  std::vector<int> parents(static_cast<std::size_t>((n - 1) * stride + 1), kMost);
  const auto below = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(engine); };
  for (int i = 0; i < n; ++i) {
    const int none[] = {-1, -2, i, i + 1, kMost, kLeast};
    parents[static_cast<std::size_t>(i * stride)] = i > 0 && below(6) != 0 ? below(i) : none[below(6)];
  }
  return parents;
}

// By the definition: a draft sees itself, and what its parent sees.
bool is_seen(const std::vector<int>& parents, int stride, int draft, int other) {
  if (draft == other) return true;
  const int parent = parents[static_cast<std::size_t>(draft * stride)];
  return parent >= 0 && parent < draft && is_seen(parents, stride, parent, other);
}

TEST(Tree, ADraftSeesItsAncestorsAndItself) {
  std::mt19937 engine(1);
  for (const int n : {1, 2, 3, 17, 63, 64}) {
    for (const int stride : {1, 3}) {
      const std::vector<int> parents = random_parents(engine, n, stride);
      const DraftTree tree{parents.data(), stride, n};
      for (int i = 0; i < n; ++i)
        for (int j = 0; j < 64; ++j)
          EXPECT_EQ(tree.seen_by(i) >> j & 1, j < n && is_seen(parents, stride, i, j) ? 1u : 0u) << i << " " << j;
      EXPECT_EQ(tree.seen_by(-1), 0u);
    }
  }
}

TEST(Tree, RowsAreTheLastTokens) {
  const int parents[] = {-1, -1, 0, 1};
  const DraftTree tree{parents, 1, 4};
  const auto row = [&](int seq_q, int seq_k, int i) { return TreeRow<int>::of(tree, seq_q, seq_k, i); };
  const auto keys = [](const TreeRow<int>& r, int seq_k) {
    std::vector<int> seen;
    for (int j = 0; j < seq_k; ++j)
      if (r.sees(j)) seen.push_back(j);
    return seen;
  };
  using Keys = std::vector<int>;
  EXPECT_EQ(keys(row(4, 6, 0), 6), (Keys{0, 1, 2}));  // a row for each draft
  EXPECT_EQ(keys(row(4, 6, 3), 6), (Keys{0, 1, 3, 5}));
  EXPECT_EQ(keys(row(1, 6, 0), 6), (Keys{0, 1, 3, 5}));  // the last draft alone
  EXPECT_EQ(keys(row(6, 6, 1), 6), (Keys{0, 1}));        // of the prompt: the band hides what follows
  EXPECT_EQ(keys(row(6, 6, 4), 6), (Keys{0, 1, 2, 4}));
  EXPECT_EQ(keys(row(3, 3, 1), 3), (Keys{1}));  // the sequence has three tokens: drafts 1 to 3
  EXPECT_EQ(keys(row(3, 3, 2), 3), (Keys{0, 2}));
  EXPECT_FALSE(row(4, 6, 3).sees(200));                  // beyond the sequence, as lanes of a tile are
  EXPECT_EQ(keys(row(0, 6, 0), 6), (Keys{0, 1, 3, 5}));  // no row of its own: stays within the tree
  EXPECT_EQ(keys(TreeRow<int>::of(DraftTree{}, 2, 5, 1), 5), (Keys{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace onepass
