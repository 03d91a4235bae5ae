// One row once more, without tiles, in float64.
#pragma once
#include <cstdint>

#include "problem/attention/score.hpp"

namespace onepass::cpu::amx {

inline constexpr int kLargestDim = 576;

// The fallback of algebra/nonfinite.hpp, for a row whose sums overflow: by problem/attention/score.hpp, key by key.
// `batch` is the entry, also when packed. Writes the row of out and lse.
void fallback_row(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                  std::int64_t batch, std::int64_t head, std::int64_t row);

}  // namespace onepass::cpu::amx
