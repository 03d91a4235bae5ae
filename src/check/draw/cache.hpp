// Lengths and page tables of a cache, drawn.
#pragma once
#include <cstdint>
#include <vector>

#include "onepass/problem.hpp"

namespace onepass::check {

// How many keys of each sequence count: those that the problem gives as an example; without, 0 to seq_k where lengths
// are given at all, the first as many as may be.
std::vector<std::int32_t> draw_lengths(const Problem& problem, std::uint64_t seed);

// [batch, max_pages]: pages in any order, each of one sequence until there are none left, then shared. Entries that no
// key lies in are out of range.
std::vector<std::int32_t> draw_page_table(const Problem& problem, const std::vector<std::int32_t>& lengths,
                                          std::uint64_t seed);

}  // namespace onepass::check
