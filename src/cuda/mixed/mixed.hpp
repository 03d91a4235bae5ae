// One call for sequences with few rows and with many: what a serving engine's step consists of.
#pragma once
#include <vector>

#include "problem/implementation.hpp"

namespace onepass::cuda {

// True if the problem is one for several kernels; else `why` has the reason.
bool is_mixed(const Problem& problem, std::string& why);
// The problem as each of its decoding kernels sees it: with the most queries that one of their sequences has.
std::vector<Problem> decoded_parts(const Problem& problem);

const Implementation& mixed_implementation();

}  // namespace onepass::cuda
