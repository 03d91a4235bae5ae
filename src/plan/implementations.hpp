// The ordered list, for `explain`, `check` and the tests.
#pragma once
#include <vector>

#include "core/implementation.hpp"

namespace onepass::plan {

std::vector<const Implementation*> implementations(Op op = Op::forward);

}  // namespace onepass::plan
