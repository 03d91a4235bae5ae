// Runs an implementation on inputs and judges it.
#pragma once
#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "problem/implementation.hpp"

namespace onepass::check {

// Plans and runs with poisoned outputs and a poisoned, guarded workspace. The outputs stay in `inputs`.
Verdict check(const Implementation& implementation, Inputs& inputs, Executor& executor = default_executor());

// Only runs, for tests that compare bytes. Returns false and does nothing if the implementation refuses the problem.
// Throws Error if it wrote outside its workspace.
bool run_on(const Implementation& implementation, Inputs& inputs, Executor& executor = default_executor());

}  // namespace onepass::check
