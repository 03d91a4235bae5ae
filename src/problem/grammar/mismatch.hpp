// In which words a call differs from the plan that it runs.
#pragma once
#include <string>

#include "problem/problem.hpp"

namespace onepass {

// "the call must match the plan: s64 (got s65), lse (got none), no sinks (got sinks)".
std::string mismatch(const Problem& planned, Problem called);

}  // namespace onepass
