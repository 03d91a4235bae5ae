#include "check/check.hpp"

namespace onepass::check {

bool run_on(const Implementation& implementation, Inputs& inputs, Executor& executor) {
  if (!implementation.why_not(inputs.problem).empty()) return false;
  const Plan plan{inputs.problem, &implementation, executor.workers(),
                  implementation.workspace_bytes(inputs.problem, executor.workers())};
  // The end of the workspace is unreadable where its size keeps the start aligned.
  Buffer workspace(plan.workspace_bytes, plan.workspace_bytes % 64 == 0 ? Placement::page_end : Placement::middle);
  inputs.poison_outputs();
  inputs.options.executor = &executor;
  const Arguments& a = inputs.tensors;
  run(plan, a.q, a.k, a.v, a.out, inputs.options, plan.workspace_bytes == 0 ? nullptr : workspace.data());
  if (!workspace.guards_untouched())
    throw Error(ErrorCode::bad_value, text(implementation.name, " wrote outside its workspace"));
  return true;
}

Verdict check(const Implementation& implementation, Inputs& inputs, Executor& executor) {
  Verdict verdict;
  try {
    if (!run_on(implementation, inputs, executor)) {
      verdict.accepted = false;
      verdict.sentence = implementation.why_not(inputs.problem);
      return verdict;
    }
  } catch (const Error& error) {
    verdict.sentence = error.what();
    return verdict;
  }
  return judge(inputs, inputs.oracle(executor), inputs.base(executor));
}

}  // namespace onepass::check
