// A call of any operator: its plan, which is kept, memory for it, and the run.
#include "plan/compute.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/overlap.hpp"
#include "base/shown.hpp"
#include "base/text.hpp"
#include "plan/cache.hpp"
#include "plan/guarded_executor.hpp"
#include "plan/implementations.hpp"
#include "plan/no_work.hpp"
#include "plan/plan.hpp"
#include "plan/scratch.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// Large enough, aligned, and apart from the call's tensors as far as the plan uses it.
void check_workspace(const PlanState& plan, const Tensors& tensors, std::span<std::byte> workspace) {
  if (plan.workspace_bytes == 0) return;
  want(workspace.size() >= plan.workspace_bytes, ErrorCode::bad_value, "the workspace must have at least ",
       plan.workspace_bytes, " bytes (got ", workspace.size(), ")");
  want(workspace.data() != nullptr && reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 == 0,
       ErrorCode::bad_value, "the workspace must be aligned to 64 bytes (got address ",
       static_cast<const void*>(workspace.data()), ")");
  const ConstTensor bytes(workspace.data(), DType::boolean, {static_cast<std::int64_t>(plan.workspace_bytes)},
                          plan.problem->device);
  const Extent extent = extent_of(bytes);
  const auto want_apart = [&](std::string_view name, const ConstTensor& t) {
    want(!t.given() || !share_memory(t, extent_of(t), bytes, extent), ErrorCode::bad_value, name,
         " must not share memory with the workspace");
  };
  for_each_role(plan.problem->op, tensors,
                [&](const RoleRow& row, const auto& tensor) { want_apart(row.name, tensor); });
  for (const auto& [name, tensor] : tensors.mod_buffers) want_apart("mod buffer " + shown(name), tensor);
}

Executor& host_of(const Launch& launch) { return launch.executor ? *launch.executor : default_executor(); }

// In memory that is large enough and apart from the tensors.
void start(const PlanState& plan, const Tensors& tensors, const Launch& launch, int workers, void* workspace) {
  GuardedExecutor executor(host_of(launch), workers);
  plan.run(tensors, workspace, executor, launch.stream);
}

}  // namespace

namespace plan {

Plan planned(Op op, const Tensors& tensors, const CallOptions& options, int workers, std::string_view implementation) {
  const CallKey key(op, tensors, options, workers, implementation);
  if (Plan known = plan_cache().find(key); known.state()) {  // the key has said all but this
    if (op->check_contents) op->check_contents(problem_of(known), tensors);
    check_apart(op, tensors);
    return known;
  }
  Mods mods;
  const auto problem = std::make_shared<const Problem>(problem_of_call(op, tensors, options, &mods));
  check_apart(op, tensors);
  Plan made = plan_for({problem, std::make_shared<const Mods>(std::move(mods)), workers}, implementation);
  plan_cache().keep(key, made);
  return made;
}

void run_planned(const Plan& plan, const Tensors& tensors, const Launch& launch) {
  const PlanState& state = *plan.state();
  if (ran_without_kernel(*state.problem, tensors)) return;
  if (!launch.workspace.empty()) return start(state, tensors, launch, state.workers, launch.workspace.data());
  const Scratch workspace(state.problem->device, state.workspace_bytes, launch.stream);
  start(state, tensors, launch, state.workers, workspace.data());
}

void compute(Op op, const Tensors& tensors, const CallOptions& options, const Launch& launch,
             std::string_view implementation) {
  const Plan plan = planned(op, tensors, options, workers_of(host_of(launch)), implementation);
  if (!launch.workspace.empty()) check_workspace(*plan.state(), tensors, launch.workspace);
  run_planned(plan, tensors, launch);
}

}  // namespace plan

void run(const Plan& plan, const Tensors& tensors, const Launch& launch) {
  const PlanState& state = state_of(plan);
  check_planned(*state.problem, tensors);
  check_apart(state.problem->op, tensors);
  const int workers = workers_of(host_of(launch));
  want(workers <= state.workers, ErrorCode::bad_value, "the executor must have at most ", state.workers,
       " workers, as the plan's (got ", workers, ")");
  check_workspace(state, tensors, launch.workspace);
  if (!plan::ran_without_kernel(*state.problem, tensors))
    start(state, tensors, launch, workers, launch.workspace.data());
}

}  // namespace onepass
