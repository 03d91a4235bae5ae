// Cutting the keys of short-query problems so that many workers can share one row's work. The cut depends on the shape
// alone, never on how many workers there are, so results are the same on every machine.
#pragma once
#include <algorithm>
#include <cstdint>

#include "algebra/ceil_div.hpp"

namespace onepass {

struct KeySplits {
  std::int64_t count = 1;
  std::int64_t chunk = 0;  // keys per split; the last may be shorter
  // > 0: sequences end anywhere before the longest (a cache), and a shorter one has shorter splits, multiples of this.
  std::int64_t granule = 0;

  std::int64_t chunk_of(std::int64_t keys) const;  // keys per split of a sequence
};

// `row_tasks` independent tasks exist already; aim at kSplitTarget in all, with at least `min_keys` keys each and
// chunks a multiple of `granule` keys.
inline constexpr std::int64_t kSplitTarget = 64, kSplitMinKeys = 256;

// `want` splits of at least `min_keys` keys each.
inline KeySplits split_into(std::int64_t want, std::int64_t seq_k, std::int64_t granule, std::int64_t min_keys) {
  const std::int64_t most = std::max<std::int64_t>(1, seq_k / min_keys);
  const std::int64_t count = std::clamp<std::int64_t>(want, 1, most);
  std::int64_t chunk = ceil_div(seq_k, count);
  chunk = std::max(granule, round_up(chunk, granule));
  return {std::max<std::int64_t>(1, ceil_div(seq_k, chunk)), chunk};
}
inline KeySplits split_keys(std::int64_t row_tasks, std::int64_t seq_k, std::int64_t granule,
                            std::int64_t min_keys = kSplitMinKeys) {
  return split_into(row_tasks > 0 ? ceil_div(kSplitTarget, row_tasks) : 1, seq_k, granule, min_keys);
}

// Splits of a fixed number of keys: Problem::batch_invariant. 1024 keys of 32/8 heads of 128 dims are 4 MB
// of K and V in 16 bits; writing and joining a partial result costs less than 1 % of reading them.
inline constexpr std::int64_t kInvariantKeys = 1024;
inline KeySplits fixed_splits(std::int64_t seq_k, std::int64_t granule) {
  const std::int64_t chunk = round_up(kInvariantKeys, granule);
  return {std::max<std::int64_t>(1, ceil_div(seq_k, chunk)), chunk};
}

inline std::int64_t KeySplits::chunk_of(std::int64_t keys) const {
  if (granule == 0) return chunk;
  const std::int64_t even = std::max(kSplitMinKeys, ceil_div(keys, count));
  return std::min(chunk, round_up(even, granule));
}

}  // namespace onepass
