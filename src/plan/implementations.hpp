// The ordered list, for `explain`, `check` and the tests, and the choice from it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"
#include "problem/implementation.hpp"

namespace onepass::plan {

std::vector<const Implementation*> implementations(Op op = kForward);
// Those of FP8 attention, by those of attention in the same order.
std::vector<const Implementation*> quantizing(const std::vector<const Implementation*>& attentions);
// In the order for a problem: of a linear those that the dataflow has chosen come first, and `why` says why, else "".
std::vector<const Implementation*> implementations(const Problem& problem, int workers, std::string* why = nullptr);

// The first of them that accepts, or the named one. Throws `unsupported` with every refusal if there is none.
Plan plan_for(const Request& request, std::string_view implementation);

}  // namespace onepass::plan
