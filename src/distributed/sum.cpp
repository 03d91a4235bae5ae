// Sums in an order that only the number of leaves decides.
#include <algorithm>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;
using Key = std::pair<Index, Index>;  // height, index

void check_nodes(Index count, std::span<const Node> given) {
  std::vector<Range> leaves;
  for (const Node& node : given) {
    const bool exists =
        node.height >= 0 && node.height < 62 && node.index >= 0 && node.index <= (count - 1) >> node.height;
    want(exists && count > 0, ErrorCode::bad_value, "node (", node.height, ", ", node.index, ") must be in a tree of ",
         count, " leaves");
    leaves.push_back({node.index << node.height, (node.index + 1) << node.height});
  }
  std::sort(leaves.begin(), leaves.end(), [](Range a, Range b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i + 1 < leaves.size(); ++i) {
    want(leaves[i].end <= leaves[i + 1].begin, ErrorCode::bad_value, "nodes must not have leaves in common");
  }
}

}  // namespace

Sum sum(Index count, std::span<const Node> given) {
  check_nodes(count, given);
  Sum result;
  std::map<Key, Index> waiting;  // for their siblings: slots
  for (Index slot = 0; slot < static_cast<Index>(given.size()); ++slot) {
    Index height = given[static_cast<std::size_t>(slot)].height, index = given[static_cast<std::size_t>(slot)].index;
    Index at = slot;
    for (; Index{1} << height < count; ++height, index /= 2) {
      const Index sibling = index ^ 1;
      if (sibling << height >= count) continue;  // it has none
      const auto found = waiting.find({height, sibling});
      if (found == waiting.end()) break;
      const Index other = found->second;
      waiting.erase(found);
      const auto [left, right] = sibling < index ? Key{other, at} : Key{at, other};
      result.additions.push_back({left, right, slot});
      at = left;
    }
    waiting[{height, index}] = at;
  }
  for (const auto& [key, slot] : waiting) {
    result.nodes.push_back({key.first, key.second});
    result.slots.push_back(slot);
  }
  return result;
}

std::vector<Node> nodes_of(const Layout& layout, Index rank) {
  std::vector<Node> leaves;
  for (const Index leaf : layout.leaves(rank)) leaves.push_back({0, leaf});
  return sum(static_cast<Index>(layout.order().size()), leaves).nodes;
}

}  // namespace onepass::inline v0::context_parallel
