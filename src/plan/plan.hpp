// Plans of problems that have no tensors, for the interfaces, tools and tests; callers have those of onepass/plan.hpp.
#pragma once
#include <string>
#include <string_view>

#include "onepass/attention.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass {

[[nodiscard]] Plan make_plan(const Problem& problem, std::string_view implementation = {},
                             const Executor* executor = nullptr);
std::string explain(const Problem& problem, const Tensors* tensors = nullptr);  // of a call
std::string explain_for(std::string_view target, const Problem& problem);

// Those of a plan; throws Error (bad_value) if it is empty.
const PlanState& state_of(const Plan& plan);
const Problem& problem_of(const Plan& plan);

// run() of tensors of any operator.
void run(const Plan& plan, const Tensors& tensors, const Launch& launch = {});

}  // namespace onepass
