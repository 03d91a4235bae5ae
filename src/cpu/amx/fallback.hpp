// One row once more, without tiles, in float64.
#pragma once
#include <cstdint>

#include "problem/attention/score.hpp"

namespace onepass::cpu::amx {

inline constexpr int kLargestDim = 576;

// The fallback of algebra/nonfinite.hpp, for a row whose sums overflow: by problem/attention/score.hpp, key by key.
// Writes the row of out and lse. mods: memory for a mask_mod.
void fallback_row(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                  std::int64_t head, std::int64_t row, const ExprMemory<float>& mods);

}  // namespace onepass::cpu::amx
