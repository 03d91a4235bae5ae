// The calls that a rank makes.
#include <algorithm>

#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;

struct Sight {
  const Visibility& visibility;
  Index length;
  bool all(Range rows, Range keys) const { return visibility.pairs(rows, keys, length) == rows.size() * keys.size(); }
  Range seen(Range rows) const { return visibility.seen(rows, length); }
  Range document(Index position) const { return visibility.document(position, length); }
  // Positions that see some position of keys.
  Range seers(Range keys) const {
    return Visibility{visibility.right, visibility.left, visibility.documents}.seen(keys, length);
  }
};

// A call of positions of a piece of rows with positions of a piece of keys, in one document.
Part part_of(const Sight& sight, const Piece& rows, Range of_rows, const Piece& keys, Range of_keys,
             const Needs& needs) {
  Part part{.rows = rows_of(rows, of_rows), .keys = rows_of(keys, of_keys)};
  part.row_positions = of_rows, part.key_positions = of_keys;
  part.document = sight.document(of_rows.begin).begin;
  part.masked = needs.distances || !sight.all(of_rows, of_keys);
  part.own = of_keys.begin <= of_rows.begin && of_rows.end <= of_keys.end;
  part.offset = of_rows.begin - of_keys.begin;
  return part;
}

// A call of several whole documents; the first one may lack rows in front if the last rows see the last keys.
Part packed_part(const Sight& sight, const Piece& rows, Range of_rows, const Piece& keys, bool at_the_end) {
  const Range of_keys = common(sight.seen(of_rows), keys.positions);
  Part part{.rows = rows_of(rows, of_rows), .keys = rows_of(keys, of_keys)};
  part.row_positions = of_rows, part.key_positions = of_keys;
  part.own = true;
  if (at_the_end) part.align = Align::bottom_right;
  part.cu_rows = {0}, part.cu_keys = {0};
  for (Index at = of_rows.begin; at < of_rows.end; at = of_rows.begin + part.cu_rows.back()) {
    const Index end = sight.document(at).end;
    part.cu_rows.push_back(std::min(of_rows.end, end) - of_rows.begin);
    part.cu_keys.push_back(std::min(of_keys.end, end) - of_keys.begin);
  }
  return part;
}

// The calls of a run with the keys of a piece, which holds the run's own positions.
void append_whole(std::vector<Part>& parts, const Sight& sight, const Piece& run, const Piece& keys,
                  const Needs& needs) {
  Range rest = run.positions;
  const auto several = [&] { return sight.document(rest.begin).end < rest.end; };
  const bool causal = sight.visibility.right == 0;
  while (!rest.empty()) {
    const Range whole = sight.document(rest.begin);
    if (needs.packed && several() && (causal || whole.begin == rest.begin)) {
      parts.push_back(packed_part(sight, run, rest, keys, causal));
      return;
    }
    const Range rows = common(rest, whole);
    parts.push_back(part_of(sight, run, rows, keys, common(sight.seen(rows), keys.positions), needs));
    rest.begin = rows.end;
  }
}

const Piece& holder(const std::vector<Piece>& pieces, Range positions) {
  return *std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) {
    return p.positions.begin <= positions.begin && positions.end <= p.positions.end;
  });
}

bool neighbours(const std::vector<Part>& met) {
  for (std::size_t i = 0; i + 1 < met.size(); ++i) {
    if (met[i].keys.end != met[i + 1].keys.begin) return false;
  }
  return true;
}

// The calls of one run with a shard. Disjoint runs have at most one document in common.
void append_met(std::vector<Part>& parts, const Sight& sight, const Piece& run, const std::vector<Piece>& shard,
                const Needs& needs) {
  std::vector<Part> met;
  for (const Piece& keys : shard) {
    if (keys == run) {
      append_whole(met, sight, run, keys, needs);
      continue;
    }
    const Range rows = common(run.positions, sight.seers(keys.positions));
    const Range seen = common(keys.positions, sight.seen(rows));
    if (!rows.empty() && !seen.empty()) met.push_back(part_of(sight, run, rows, keys, seen, needs));
  }
  const auto whole = [&](const Part& part) { return !part.masked && part.rows == run.rows; };
  if (met.size() > 1 && neighbours(met) && std::all_of(met.begin(), met.end(), whole)) {
    met.front().keys.end = met.back().keys.end;
    met.front().key_positions.end = met.back().key_positions.end;
    met.front().own = std::any_of(met.begin(), met.end(), [](const Part& part) { return part.own; });
    met.resize(1);
  }
  for (const Part& part : met) {
    Part* const last = parts.empty() ? nullptr : &parts.back();
    if (last && !last->masked && !part.masked && last->keys == part.keys && last->rows.end == part.rows.begin &&
        last->own == part.own) {  // neighbouring rows that see the same keys: one call
      last->rows.end = part.rows.end;
      last->row_positions.end = part.row_positions.end;
    } else {
      parts.push_back(part);
    }
  }
}

}  // namespace

std::vector<Part> gather_parts(const Layout& layout, const Visibility& visibility, Index rank, const Needs& needs) {
  const std::vector<Piece> keys = gathered(layout, visibility, rank);
  const Sight sight{visibility, layout.length()};
  std::vector<Part> parts;
  for (const Piece& run : needs.by_unit ? layout.units(rank) : layout.runs(rank)) {
    if (!run.positions.empty()) append_whole(parts, sight, run, holder(keys, sight.seen(run.positions)), needs);
  }
  return parts;
}

std::vector<Part> ring_parts(const Layout& layout, const Visibility& visibility, Index rank, Index source,
                             const Needs& needs) {
  check_documents(visibility.documents, layout.length());
  const std::vector<Piece> runs = layout.runs(rank), shard = layout.runs(source);
  const bool causal = visibility.left < 0 && visibility.right == 0 && visibility.documents.size() < 3;
  std::vector<Part> parts;
  if (rank == source && causal && runs.size() > 1 && !needs.distances) {
    const Range rows{0, runs.back().rows.end}, positions{runs.front().positions.begin, runs.back().positions.end};
    parts.push_back({.rows = rows, .keys = rows, .row_positions = positions, .key_positions = positions, .own = true});
    return parts;  // places are in the order of positions, so the mask is the same
  }
  for (const Piece& run : runs) append_met(parts, {visibility, layout.length()}, run, shard, needs);
  return parts;
}

Index ring_steps(const Layout& layout, const Visibility& visibility, Index source) {
  for (Index step = layout.ranks() - 1; step > 0; --step) {
    const Index rank = (source + step) % layout.ranks();
    if (!moves(layout, visibility, source, rank).empty()) return step;
  }
  return 0;
}

}  // namespace onepass::inline v0::context_parallel
