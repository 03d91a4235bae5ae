// Positions that see each other: ranges and numbers of pairs.
#include <algorithm>

#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;

// The sum of min(t, n) over t = 0 .. x - 1.
Index capped_sum(Index x, Index n) {
  if (x <= 0) return 0;
  return x <= n + 1 ? x * (x - 1) / 2 : n * (n + 1) / 2 + (x - n - 1) * n;
}

// Pairs (i, j) of rows and keys with j < i + shift.
Index before(Range rows, Range keys, Index shift) {
  const Index first = rows.begin + shift - keys.begin, n = keys.size();
  return capped_sum(first + rows.size(), n) - capped_sum(first, n);
}

}  // namespace

Range Visibility::document(Index position, Index length) const {
  if (documents.size() < 2) return {0, length};
  const auto next = std::upper_bound(documents.begin() + 1, documents.end() - 1, position);
  return {*(next - 1), *next};
}

Range Visibility::seen(Range rows, Index length) const {
  if (rows.empty()) return {rows.begin, rows.begin};
  const Range first = document(rows.begin, length), last = document(rows.end - 1, length);
  const Index before = left < 0 ? 0 : std::max<Index>(0, rows.begin - left - first.begin);
  return {first.begin + before / key_multiple * key_multiple,
          right < 0 ? last.end : std::min(last.end, rows.end + right)};
}

Index Visibility::pairs(Range rows, Range keys, Index length) const {
  Index total = 0;
  while (!rows.empty()) {
    const Range whole = document(rows.begin, length);
    const Range mine = common(rows, whole), theirs = common(keys, whole);
    if (!theirs.empty()) {
      const Index up_to = right < 0 ? mine.size() * theirs.size() : before(mine, theirs, right + 1);
      total += up_to - (left < 0 ? 0 : before(mine, theirs, -left));
    }
    rows.begin = mine.end;
  }
  return total;
}

}  // namespace onepass::inline v0::context_parallel
