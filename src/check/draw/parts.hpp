// The parts that a merge joins.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Into part `number`. In every sixth row it has seen nothing, in every eleventh no part has; what it holds in O there
// stays as it is.
void draw_part(const Problem& problem, std::int64_t number, const ConstTensor& out, const ConstTensor& lse,
               std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
