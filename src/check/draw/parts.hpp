// The parts that a merge joins.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Draws part `number`. Every sixth row of it is empty, and every eleventh row of all parts. O of an empty row stays as
// it is.
void draw_part(const Problem& problem, std::int64_t number, const ConstTensor& out, const ConstTensor& lse,
               std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
