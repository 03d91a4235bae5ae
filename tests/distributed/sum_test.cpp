#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distributed/plans.hpp"
#include "onepass/error.hpp"

namespace onepass::inline v0::context_parallel::test {
namespace {

// A sum with its brackets; slots are overwritten as the additions say, none before it is there.
std::vector<std::string> added(const Sum& sum, std::vector<std::string> slots) {
  Index last = 0;
  for (const Sum::Addition& a : sum.additions) {
    EXPECT_GE(a.after, last);
    EXPECT_LE(std::max(a.to, a.from), a.after);
    last = a.after;
    auto& to = slots[static_cast<std::size_t>(a.to)];
    to = "(" + to + "+" + slots[static_cast<std::size_t>(a.from)] + ")";
  }
  std::vector<std::string> left;
  for (const Index slot : sum.slots) left.push_back(slots[static_cast<std::size_t>(slot)]);
  return left;
}

std::string in_one_go(Index count) {
  std::vector<Node> leaves;
  std::vector<std::string> values;
  for (Index i = 0; i < count; ++i) leaves.push_back({0, i}), values.push_back(std::to_string(i));
  const std::vector<std::string> left = added(sum(count, leaves), values);
  EXPECT_EQ(left.size(), 1u);
  return left.front();
}

TEST(ContextSum, IsABinaryTree) {
  EXPECT_EQ(in_one_go(1), "0");
  EXPECT_EQ(in_one_go(4), "((0+1)+(2+3))");
  EXPECT_EQ(in_one_go(5), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(in_one_go(7), "(((0+1)+(2+3))+((4+5)+6))");
}

// Ranks with any leaves in any order, whose nodes are added by somebody else: the same brackets.
RC_GTEST_PROP(ContextSum, HasTheSameBracketsWhoeverAdds, ()) {
  const auto count = *rc::gen::inRange<Index>(1, 40), ranks = *rc::gen::inRange<Index>(1, 6);
  std::map<Index, std::vector<Index>> leaves;
  for (Index i = 0; i < count; ++i) leaves[*rc::gen::inRange<Index>(0, ranks)].push_back(i);
  std::vector<Node> nodes;
  std::vector<std::string> values;
  for (auto& [rank, mine] : leaves) {
    for (std::size_t i = mine.size(); i > 1; --i) std::swap(mine[i - 1], mine[*rc::gen::inRange<std::size_t>(0, i)]);
    std::vector<Node> given;
    std::vector<std::string> slots;
    for (const Index leaf : mine) given.push_back({0, leaf}), slots.push_back(std::to_string(leaf));
    const Sum local = sum(count, given);
    const std::vector<std::string> left = added(local, slots);
    nodes.insert(nodes.end(), local.nodes.begin(), local.nodes.end());
    values.insert(values.end(), left.begin(), left.end());
  }
  const std::vector<std::string> total = added(sum(count, nodes), values);
  RC_ASSERT(total.size() == 1u);
  RC_ASSERT(total.front() == in_one_go(count));
}

TEST(ContextSum, ARankSendsOneNodeWhereRanksAreAPowerOfTwo) {
  for (const Index ranks : {1, 2, 4, 8}) {
    for (Index r = 0; r < ranks; ++r) EXPECT_EQ(nodes_of(Layout::zigzag(100, ranks, 16), r).size(), 1u);
  }
  for (Index r = 0; r < 3; ++r) EXPECT_LE(nodes_of(Layout::zigzag(100, 3, 16), r).size(), 4u);
}

TEST(ContextSum, RefusesNodesThatAreNoTree) {
  EXPECT_THROW(static_cast<void>(sum(4, std::vector<Node>{{0, 4}})), Error);
  EXPECT_THROW(static_cast<void>(sum(4, std::vector<Node>{{0, 1}, {1, 0}})), Error);
  EXPECT_THROW(static_cast<void>(sum(4, std::vector<Node>{{0, 1}, {0, 1}})), Error);
  EXPECT_THROW(static_cast<void>(sum(0, std::vector<Node>{{0, 0}})), Error);
}

}  // namespace
}  // namespace onepass::inline v0::context_parallel::test
