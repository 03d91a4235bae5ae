// What the two directions of the grammar of problems share (docs/reference/problem.md).
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

namespace onepass {

using Lengths = std::vector<std::int64_t>;
inline constexpr char kSpreadLetters[] = "bhqk";  // batch, heads, queries, keys
inline std::int64_t sum(const Lengths& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

// Of a page table's row, to hold a sequence's keys.
inline std::int64_t pages_for(std::int64_t keys, std::int64_t page_size) {
  return keys / page_size + (keys % page_size != 0);
}

}  // namespace onepass
