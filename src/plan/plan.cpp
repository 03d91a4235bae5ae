// The ordered list of implementations, the choice among them, and the calls of attention that are built on it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/guarded_executor.hpp"
#include "base/overlap.hpp"
#include "base/shown.hpp"
#include "base/text.hpp"
#include "cpu/implementations.hpp"
#include "cuda/implementations.hpp"
#include "plan/compute.hpp"
#include "plan/dataflow.hpp"
#include "plan/implementations.hpp"
#include "plan/no_work.hpp"
#include "plan/scratch.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/implementation.hpp"
#include "problem/merge/merge_problem.hpp"
#include "problem/roles.hpp"
#include "problem/tensor_checks.hpp"
#include "reference/reference.hpp"

namespace onepass::plan {

// Best first. The reference stands last and is only taken by name: nothing falls back silently to something slower.
std::vector<const Implementation*> implementations(Op op) {
  std::vector<const Implementation*> all = cuda::implementations();
  for (const Implementation& row : cpu::implementations()) all.push_back(&row);
  for (const Implementation& row : reference::reference_implementations()) all.push_back(&row);
  std::erase_if(all, [&](const Implementation* row) { return !computes(*row, op); });
  return all;
}

std::vector<const Implementation*> implementations(const Problem& p, int workers, std::string* why_) {
  std::vector<const Implementation*> all = implementations(p.op);
  if (p.op != Op::linear) return all;
  const Chosen chosen = choose_dataflow(p, workers);
  const auto of_chosen = [&](const Implementation* row) { return row->dataflow == chosen.dataflow; };
  std::stable_partition(all.begin(), all.end(), of_chosen);  // clang 14 cannot compile the one of ranges
  if (why_) *why_ = why(p, workers, chosen);
  return all;
}

}  // namespace onepass::plan

namespace onepass::inline v0 {
namespace {

using reference::is_reference;

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
  for (const RoleRow& row : kRoleTable) want_apart(row.name, tensor_of(tensors, row));
  for (const auto& [name, tensor] : tensors.mod_buffers) want_apart("mod buffer " + shown(name), tensor);
}

// A page table alone would make every sequence as long as its row, with stale keys behind the real ones.
void want_lengths(const Tensors& t) {
  want(!t.page_table.given() || t.seqused_k.given(), ErrorCode::bad_value,
       "page_table requires seqused_k, the number of valid keys of each sequence");
}

Plan plan_for(const Request& request, std::string_view implementation) {
  const Problem& problem = *request.problem;
  std::string refusals, names;
  for (const Implementation* row : plan::implementations(problem, request.workers)) {
    if (implementation.empty() ? is_reference(*row) : implementation != row->name) continue;
    Decision decision = decide(*row, request);
    if (decision) return Plan(std::move(decision.state));
    refusals += "; " + std::string(row->name) + ": " + decision.refusal;
  }
  if (refusals.empty() && !implementation.empty()) {
    for (const Implementation* row : plan::implementations(problem.op))
      names += (names.empty() ? "" : ", ") + std::string(row->name);
    throw Error(ErrorCode::bad_value,
                text("implementation must be one of ", names, " (got '", shown(implementation), "')"));
  }
  throw Error(ErrorCode::unsupported, text("no implementation accepts \"", to_string(problem), "\"", refusals));
}

const PlanState& state_of(const Plan& plan) {
  if (!plan.state()) throw Error(ErrorCode::bad_value, "the plan is empty; make_plan() returns one that is not");
  return *plan.state();
}

}  // namespace

std::string_view Plan::name() const { return state_ ? state_->implementation : "none"; }
std::string Plan::describe() const { return state_ ? state_->describe() : std::string(); }
const Problem& Plan::problem() const { return *state_of(*this).problem; }
int Plan::workers() const { return state_ ? state_->workers : 1; }
std::size_t Plan::workspace_bytes() const { return state_ ? state_->workspace_bytes : 0; }

Problem make_problem(const Attention& attention, const Tensors& tensors) {
  want_lengths(tensors);
  return problem_of(tensors, attention);
}

Plan make_plan(const Problem& problem, std::string_view implementation, const Executor* executor) {
  Request request = request_for(problem);  // a wrong problem is said before a wrong executor
  request.workers = workers_of(executor ? *executor : default_executor());
  return plan_for(request, implementation);
}

void prepare(const Plan& plan) { state_of(plan).prepare(); }

void run(const Plan& plan, const Tensors& tensors, const Launch& launch) {
  const PlanState& state = state_of(plan);
  check_planned(*state.problem, tensors);
  check_apart(state.problem->op, tensors);
  Executor& host = launch.executor ? *launch.executor : default_executor();
  const int workers = workers_of(host);
  want(workers <= state.workers, ErrorCode::bad_value, "the executor must have at most ", state.workers,
       " workers, as the plan's (got ", workers, ")");
  check_workspace(state, tensors, launch.workspace);
  if (plan::ran_without_kernel(*state.problem, tensors)) return;
  GuardedExecutor executor(host, workers);
  state.run(tensors, launch.workspace.data(), executor, launch.stream);
}

}  // namespace onepass::inline v0

namespace onepass::plan {

void compute(Op op, const Tensors& tensors, const Attention& attention, const Launch& launch,
             std::string_view implementation) {
  Mods mods;
  check_roles(op, tensors);
  want_lengths(tensors);
  const auto problem = std::make_shared<const Problem>(problem_of(op, tensors, attention, &mods));
  check_apart(op, tensors);
  Executor& host = launch.executor ? *launch.executor : default_executor();
  const Plan plan =
      plan_for({problem, std::make_shared<const Mods>(std::move(mods)), workers_of(host)}, implementation);
  const PlanState& state = *plan.state();
  GuardedExecutor executor(host, state.workers);
  if (!launch.workspace.empty()) {
    check_workspace(state, tensors, launch.workspace);
    if (!ran_without_kernel(*problem, tensors)) state.run(tensors, launch.workspace.data(), executor, launch.stream);
    return;
  }
  if (ran_without_kernel(*problem, tensors)) return;
  const Scratch workspace(problem->device, state.workspace_bytes, launch.stream);
  state.run(tensors, workspace.data(), executor, launch.stream);
}

}  // namespace onepass::plan

namespace onepass::inline v0 {

void attention(const Tensors& tensors, const Attention& attention, const Launch& launch,
               std::string_view implementation) {
  plan::compute(Op::forward, tensors, attention, launch, implementation);
}

void attention_backward(const Tensors& tensors, const Attention& attention, const Launch& launch,
                        std::string_view implementation) {
  want(tensors.dout.given(), ErrorCode::bad_shape, "dout must be given");
  plan::compute(Op::backward, tensors, attention, launch, implementation);
}

void merge(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses, const Tensor& out, const Tensor& lse,
           const Launch& launch) {
  const Tensors tensors{.out = out, .lse = lse, .outs = {outs.begin(), outs.end()}, .lses = {lses.begin(), lses.end()}};
  const Plan plan = make_plan(merge_problem_of(tensors), {}, launch.executor);
  Executor& host = launch.executor ? *launch.executor : default_executor();
  GuardedExecutor guarded(host, plan.workers());
  if (!plan::ran_without_kernel(plan.problem(), tensors)) plan.state()->run(tensors, nullptr, guarded, launch.stream);
}

// A merge of results that have no columns.
void merge_lse(std::span<const ConstTensor> lses, const Tensor& lse, const Launch& launch) {
  const auto without_columns = [](auto t) {
    want(t.rank >= 1 && t.rank < kMaxRank, ErrorCode::bad_shape, "an LSE must have 1 to 3 dimensions (got ", t.rank,
         ")");
    t.shape[t.rank] = 0;
    t.stride[t.rank++] = 1;
    t.data = nullptr;
    return t;
  };
  want(!lses.empty(), ErrorCode::bad_value, "lses must hold at least one LSE (got none)");
  std::vector<ConstTensor> outs;
  outs.reserve(lses.size());
  for (const ConstTensor& t : lses) outs.push_back(without_columns(t));
  merge(outs, lses, without_columns(lse), lse, launch);
}

std::string explain(const Problem& problem) {
  const Request request = request_for(problem, problem.op == Op::linear ? workers_of(default_executor()) : 1);
  std::string why;
  const auto rows = plan::implementations(problem, request.workers, &why);
  std::string out = to_string(problem) + "\n" + why + (why.empty() ? "" : "\n");
  bool chosen = false;
  for (const Implementation* row : rows) {
    const Decision decision = decide(*row, request);
    const bool taken = !chosen && decision && !is_reference(*row);
    chosen = chosen || taken;
    out += std::string(taken ? "* " : "  ") + row->name + ": ";
    if (!decision)
      out += "no, " + decision.refusal;
    else
      out += decision.state->describe() + (taken                ? ""
                                           : is_reference(*row) ? " (only by name)"
                                                                : " (supported, lower priority)");
    out += "\n";
  }
  return out;
}
std::string explain(std::string_view line) { return explain(parse_problem(line)); }

}  // namespace onepass::inline v0
