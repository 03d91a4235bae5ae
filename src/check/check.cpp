#include "check/check.hpp"
#include "base/text.hpp"

namespace onepass::check {

bool run_on(const Implementation& implementation, Inputs& inputs, Executor& executor) {
  Decision decision = decide(implementation, inputs.problem, executor.workers());
  if (!decision) return false;
  const Plan plan(std::move(decision.state));
  // The end of the workspace is unreadable where its size keeps the start aligned.
  const std::size_t bytes = plan.workspace_bytes();
  Buffer workspace(bytes, bytes % 64 == 0 ? Placement::page_end : Placement::middle);
  inputs.poison_outputs();
  inputs.launch = {.executor = &executor, .workspace = {workspace.data(), bytes}};
  run(plan, inputs.tensors, inputs.launch);
  inputs.launch.workspace = {};
  if (!workspace.guards_untouched())
    throw Error(ErrorCode::bad_value, text(implementation.name, " wrote outside its workspace"));
  return true;
}

Verdict check(const Implementation& implementation, Inputs& inputs, Executor& executor) {
  Verdict verdict;
  try {
    if (!run_on(implementation, inputs, executor)) {
      verdict.accepted = false;
      verdict.sentence = why_not(implementation, inputs.problem);
      return verdict;
    }
  } catch (const Error& error) {
    verdict.sentence = error.what();
    return verdict;
  }
  return judge(inputs, executor);
}

}  // namespace onepass::check
