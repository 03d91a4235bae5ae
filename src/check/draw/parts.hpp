// The parts that a merge joins.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"

namespace onepass::check {

// Every sixth row of a part is empty, and every eleventh row of all parts. O of an empty row stays as it is.
void draw_parts(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);

}  // namespace onepass::check
