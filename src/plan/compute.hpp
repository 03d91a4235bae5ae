// A call of one operator: its plan, memory for it, and the run.
#pragma once
#include <string_view>

#include "plan/plan.hpp"
#include "problem/operator.hpp"

namespace onepass::plan {

// The plan of a checked call: that of an earlier call like it (plan/cache.hpp), or a new one. Throws before anything is
// written. Tensors that describe another operator than `op` are refused by name.
Plan planned(Op op, const Tensors& tensors, const CallOptions& options, int workers,
             std::string_view implementation = {});

// Runs such a plan on its tensors. launch.workspace is large enough and apart from them; empty: memory is allocated.
void run_planned(const Plan& plan, const Tensors& tensors, const Launch& launch);

// Both, in a workspace that is checked.
void compute(Op op, const Tensors& tensors, const CallOptions& options, const Launch& launch,
             std::string_view implementation = {});

}  // namespace onepass::plan
