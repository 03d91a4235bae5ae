// The least work of a call: operations, and bytes that are read and written.
#pragma once
#include <cstdint>

#include "problem/problem.hpp"

namespace onepass::bench {

// The rate that a CPU's figures stand beside, apart from its peak. reads: K and V, or weights, are hardly reused.
enum class Bound : std::uint8_t { none, reads, copies };

struct Work {
  double flops = 0, bytes = 0;
  Bound bound = Bound::none;
  bool moves = false;  // on a device its figures are bytes, beside a copy's
};
Work work_of(const Problem& problem);

Problem with_lengths(const Problem& problem);  // those that its inputs are drawn with
double visible_pairs(const Problem& problem);  // over batch and query heads, by the band alone

}  // namespace onepass::bench
