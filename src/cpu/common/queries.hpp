// The sequences of a call that a kernel computes. In cpu.mixed two kernels share a call.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/common/combine.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu {

// A kernel's plan state may leave out the sequences with fewer or more queries.
struct OfQueries {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();
  bool all() const { return least == 0 && most == std::numeric_limits<std::int64_t>::max(); }
  bool holds(std::int64_t seq_q) const { return seq_q >= least && seq_q <= most; }
};

// The batch entries with such a number of queries, or all.
inline std::vector<std::int64_t> entries_of(const Problem& p, const Tensors& a, const OfQueries& queries) {
  std::vector<std::int64_t> entries;
  for (std::int64_t b = 0; b < p.batch; ++b)
    if (queries.all() || queries.holds(sequence_of(p, a, b).seq_q)) entries.push_back(b);
  return entries;
}

// The longest sequences among them.
inline Longest longest_of(const Problem& p, const Tensors& a, const std::vector<std::int64_t>& entries) {
  if (!has_lengths(p)) return {p.seq_q, p.seq_k};
  Longest n;
  for (const std::int64_t b : entries) {
    const Sequence s = sequence_of(p, a, b);
    n.seq_q = std::max(n.seq_q, s.seq_q);
    n.seq_k = std::max(n.seq_k, s.seq_k);
  }
  return n;
}

// combine() for these entries.
void combine(const Problem& problem, const Tensors& arguments, const Partials& partials, const ScoreUnit& unit,
             const std::vector<std::int64_t>& entries, Executor& executor);

}  // namespace onepass::cpu
