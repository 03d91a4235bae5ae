// Units, their order, and the ranks' shares of it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.hpp"
#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;
constexpr Index kMaxLength = (Index{1} << 31) - 1, kMaxUnits = Index{1} << 20;

void check_size(const char* what, Index n, Index low, Index high) {
  want(n >= low && n <= high, ErrorCode::bad_value, what, " must be from ", low, " to ", high, " (got ", n, ")");
}

// `parts` parts of [begin, begin + length), as equal as multiples of `multiple` allow; without the last cut.
void cut_evenly(std::vector<Index>& cuts, Index begin, Index length, Index parts, Index multiple) {
  for (Index u = 0; u < parts; ++u) {
    const Index rounded = (length * u + parts * multiple / 2) / (parts * multiple) * multiple;
    cuts.push_back(begin + std::min(length, rounded));
  }
}

Layout evenly(Index length, Index ranks, Index units, Index multiple, bool in_pairs) {
  check_size("length", length, 0, kMaxLength);
  check_size("ranks", ranks, 1, kMaxUnits / 2);
  check_size("multiple", multiple, 1, kMaxLength);
  const Index n = units != 0 ? units : in_pairs ? 2 * ranks : ranks;
  check_size("units", n, 1, kMaxUnits);
  want(!in_pairs || n % 2 == 0, ErrorCode::bad_value, "units of a zigzag layout must be an even number (got ", n, ")");
  std::vector<Index> cuts, order, shares;
  cut_evenly(cuts, 0, length, n, multiple);
  cuts.push_back(length);
  for (Index u = 0; u < n; ++u) order.push_back(!in_pairs ? u : u % 2 == 0 ? u / 2 : n - 1 - u / 2);
  const Index width = in_pairs ? 2 : 1;
  shares.reserve(static_cast<std::size_t>(ranks) + 1);
  for (Index r = 0; r < ranks; ++r) shares.push_back(width * (n / width * r / ranks));
  shares.push_back(width * (n / width));
  return {std::move(cuts), std::move(order), std::move(shares)};
}

}  // namespace

void check_rank(const Layout& layout, Index rank) { check_size("rank", rank, 0, layout.ranks() - 1); }

void check_documents(const std::vector<Index>& prefix, Index length) {
  if (prefix.empty()) return;
  want(prefix.front() == 0 && prefix.back() == length && std::is_sorted(prefix.begin(), prefix.end()),
       ErrorCode::bad_value, "documents must ascend from 0 to the length of the sequence, ", length);
}

Layout::Layout(std::vector<Index> cuts, std::vector<Index> order, std::vector<Index> shares)
    : cuts_(std::move(cuts)), order_(std::move(order)), shares_(std::move(shares)) {
  const auto ascends = [](const std::vector<Index>& x) {
    return x.size() > 1 && x.front() == 0 && std::is_sorted(x.begin(), x.end());
  };
  want(ascends(cuts_) && cuts_.back() <= kMaxLength, ErrorCode::bad_value,
       "cuts must be at least two positions that ascend from 0 to at most ", kMaxLength);
  const auto n = static_cast<Index>(cuts_.size()) - 1;
  std::vector<Index> sorted = order_, all(static_cast<std::size_t>(n));
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  want(sorted == all, ErrorCode::bad_value, "order must list each of the ", n, " units once");
  want(ascends(shares_) && shares_.back() == n, ErrorCode::bad_value,
       "shares must ascend from 0 to the number of units, ", n, ", with one more entry than ranks");
}

Layout Layout::contiguous(Index length, Index ranks, Index units, Index multiple) {
  return evenly(length, ranks, units, multiple, false);
}
Layout Layout::zigzag(Index length, Index ranks, Index units, Index multiple) {
  return evenly(length, ranks, units, multiple, true);
}

Layout Layout::documents(const std::vector<Index>& prefix, Index ranks, Index multiple) {
  check_size("ranks", ranks, 1, kMaxUnits / 2);
  want(!prefix.empty(), ErrorCode::bad_value, "documents must have at least one entry");
  check_size("length", prefix.back(), 0, kMaxLength);
  check_size("multiple", multiple, 1, kMaxLength / (2 * ranks));
  check_documents(prefix, prefix.back());
  std::vector<Index> cuts, order, shares{0};
  std::vector<std::vector<Index>> held(static_cast<std::size_t>(ranks));  // units by rank
  std::vector<Index> positions(held.size());
  std::vector<std::pair<Index, Index>> small;  // unit, length
  for (std::size_t d = 0; d + 1 < prefix.size(); ++d) {
    const Index length = prefix[d + 1] - prefix[d], first = static_cast<Index>(cuts.size());
    if (length < 2 * ranks * multiple) {
      cuts.push_back(prefix[d]);
      small.emplace_back(first, length);
      continue;
    }
    cut_evenly(cuts, prefix[d], length, 2 * ranks, multiple);
    for (Index u = 0; u < 2 * ranks; ++u) {
      const auto r = static_cast<std::size_t>(std::min(u, 2 * ranks - 1 - u));
      held[r].push_back(first + u);
      const Index end = u + 1 < 2 * ranks ? cuts[static_cast<std::size_t>(first + u) + 1] : prefix[d + 1];
      positions[r] += end - cuts[static_cast<std::size_t>(first + u)];
    }
  }
  for (const auto& [unit, length] : small) {
    const auto r = static_cast<std::size_t>(std::min_element(positions.begin(), positions.end()) - positions.begin());
    held[r].push_back(unit);
    positions[r] += length;
  }
  if (cuts.empty()) cuts.push_back(0), held[0].push_back(0);  // no documents: one empty unit
  cuts.push_back(prefix.back());
  for (const std::vector<Index>& units : held) {
    order.insert(order.end(), units.begin(), units.end());
    shares.push_back(static_cast<Index>(order.size()));
  }
  return {std::move(cuts), std::move(order), std::move(shares)};
}

std::vector<Index> Layout::leaves(Index rank) const {
  check_rank(*this, rank);
  const auto r = static_cast<std::size_t>(rank);
  std::vector<Index> places(static_cast<std::size_t>(shares_[r + 1] - shares_[r]));
  std::iota(places.begin(), places.end(), shares_[r]);
  std::sort(places.begin(), places.end(), [&](Index a, Index b) {
    return order_[static_cast<std::size_t>(a)] < order_[static_cast<std::size_t>(b)];
  });
  return places;
}

std::vector<Piece> Layout::units(Index rank) const {
  std::vector<Piece> found;
  Index at = 0;
  for (const Index place : leaves(rank)) {
    const auto u = static_cast<std::size_t>(order_[static_cast<std::size_t>(place)]);
    const Range positions{cuts_[u], cuts_[u + 1]};
    found.push_back({positions, {at, at + positions.size()}});
    at += positions.size();
  }
  return found;
}

std::vector<Piece> Layout::runs(Index rank) const {
  std::vector<Piece> found;
  for (const Piece& unit : units(rank)) {
    if (unit.positions.empty()) continue;
    if (!found.empty() && found.back().positions.end == unit.positions.begin) {
      found.back().positions.end = unit.positions.end;
      found.back().rows.end = unit.rows.end;
    } else {
      found.push_back(unit);
    }
  }
  return found;
}

Index Layout::count(Index rank) const {
  const std::vector<Piece> pieces = units(rank);
  return pieces.empty() ? 0 : pieces.back().rows.end;
}

NodeLayouts node_layouts(const Layout& layout, Index within, Index node) {
  want(within >= 1 && layout.ranks() % within == 0, ErrorCode::bad_value, "the ranks of a node must divide ",
       layout.ranks(), ", the layout's ranks (got ", within, ")");
  want(node >= 0 && node < layout.ranks() / within, ErrorCode::bad_value, "node must be from 0 to ",
       layout.ranks() / within - 1, " (got ", node, ")");
  const std::vector<Index>&cuts = layout.cuts(), &order = layout.order(), &shares = layout.shares();
  std::vector<Index> of_nodes;
  for (Index r = 0; r <= layout.ranks(); r += within) of_nodes.push_back(shares[static_cast<std::size_t>(r)]);
  // The node's units, numbered in ascending order.
  const auto first = shares.begin() + node * within;
  const std::vector<Index> mine(order.begin() + *first, order.begin() + *(first + within));
  std::vector<Index> units = mine, own_cuts{0}, own_order, own_shares;
  std::ranges::sort(units);
  if (units.empty()) return {Layout(cuts, order, of_nodes), Layout::contiguous(0, within)};
  for (const Index u : units)
    own_cuts.push_back(own_cuts.back() + cuts[static_cast<std::size_t>(u) + 1] - cuts[static_cast<std::size_t>(u)]);
  for (const Index u : mine) own_order.push_back(std::ranges::lower_bound(units, u) - units.begin());
  for (Index r = 0; r <= within; ++r) own_shares.push_back(first[r] - *first);
  return {Layout(cuts, order, of_nodes), Layout(own_cuts, own_order, own_shares)};
}

}  // namespace onepass::inline v0::context_parallel
