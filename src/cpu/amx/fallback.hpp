// One row once more, without tiles, in float64.
#pragma once
#include <cstdint>

#include "core/arguments.hpp"

namespace onepass::cpu::amx {

inline constexpr int kLargestDim = 576;

// For rows whose result is not finite. A tile multiplies every value with every weight, so a NaN or an infinity that a
// row must not see reaches it through a weight of 0; here unseen values stay out of the sums. `batch` is the entry,
// also when packed. Writes the row of out and lse.
void careful_row(const Problem& problem, const Arguments& arguments, const Sequence& seq, std::int64_t batch,
                 std::int64_t head, std::int64_t row);

}  // namespace onepass::cpu::amx
