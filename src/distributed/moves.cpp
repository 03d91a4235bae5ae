// Keys that travel, because somebody sees them.
#include <algorithm>

#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;

// Positions that pieces of a sequence see, joined; rows are places in that order.
std::vector<Piece> seen_by(const std::vector<Piece>& readers, const Visibility& visibility, Index length) {
  std::vector<Piece> found;
  for (const Piece& reader : readers) {
    if (reader.positions.empty()) continue;
    const Range seen = visibility.seen(reader.positions, length);
    if (!found.empty() && seen.begin <= found.back().positions.end)
      found.back().positions.end = std::max(found.back().positions.end, seen.end);
    else
      found.push_back({seen, {}});
  }
  Index at = 0;
  for (Piece& piece : found) {
    piece.rows = {at, at + piece.positions.size()};
    at = piece.rows.end;
  }
  return found;
}

std::vector<Piece> units_of(const Layout& layout, Index rank, const Node& node) {
  const std::vector<Index> leaves = layout.leaves(rank);
  const std::vector<Piece> units = layout.units(rank);
  std::vector<Piece> found;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (leaves[i] >> node.height == node.index) found.push_back(units[i]);
  }
  return found;
}

}  // namespace

std::vector<Piece> gathered(const Layout& layout, const Visibility& visibility, Index rank) {
  check_documents(visibility.documents, layout.length());
  return seen_by(layout.units(rank), visibility, layout.length());
}

std::vector<Move> moves_between(const std::vector<Piece>& shard, const std::vector<Piece>& wanted,
                                const std::vector<Piece>& at) {
  std::vector<Move> found;
  auto place = at.begin();
  for (const Piece& held : shard) {
    for (const Piece& want : wanted) {
      const Range both = common(held.positions, want.positions);
      if (both.empty()) continue;
      while (place->positions.end < both.end) ++place;  // both ascend
      found.push_back({rows_of(held, both), rows_of(*place, both)});
    }
  }
  return found;
}

std::vector<Move> moves(const Layout& layout, const Visibility& visibility, Index source, Index rank,
                        std::optional<Node> node) {
  const std::vector<Piece> all = gathered(layout, visibility, rank), shard = layout.runs(source);
  if (!node) return moves_between(shard, all, all);
  return moves_between(shard, seen_by(units_of(layout, rank, *node), visibility, layout.length()), all);
}

}  // namespace onepass::inline v0::context_parallel
