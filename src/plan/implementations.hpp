// The ordered list, for `explain`, `check` and the tests.
#pragma once
#include <string>
#include <vector>

#include "problem/implementation.hpp"

namespace onepass::plan {

std::vector<const Implementation*> implementations(Op op = Op::forward);
// In the order for a problem: of a linear those that the dataflow has chosen come first, and `why` says why, else "".
std::vector<const Implementation*> implementations(const Problem& problem, int workers, std::string* why = nullptr);

}  // namespace onepass::plan
