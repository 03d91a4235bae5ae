// The ordered list of implementations and the choice among them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "core/arguments.hpp"
#include "core/guarded_executor.hpp"
#include "core/implementation.hpp"
#include "core/shown.hpp"
#include "cpu/implementations.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/implementations.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"

namespace onepass {
namespace plan {

// Best first. The reference stands last and is only taken by name: nothing falls back silently to something slower.
std::vector<const Implementation*> implementations() {
  std::vector<const Implementation*> all = cuda::implementations();
  for (const Implementation& row : cpu::implementations()) all.push_back(&row);
  all.push_back(&reference::reference_implementation());
  return all;
}

}  // namespace plan

namespace {

bool is_reference(const Implementation& row) { return &row == &reference::reference_implementation(); }

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
};

// The workspace of one call, where the problem's tensors are.
class Scratch {
 public:
  Scratch(Device device, std::size_t bytes, void* stream) {
    if (bytes == 0) return;
    if (device.kind == DeviceKind::cuda) {
      on_device_ = std::make_unique<cuda::DeviceScratch>(cuda::device_facts(device.index), bytes,
                                                         static_cast<cuda::Stream>(stream));
      return;
    }
    on_host_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}, std::nothrow)));
    if (!on_host_) throw Error(ErrorCode::out_of_memory, text("no ", bytes, " bytes of workspace could be had"));
  }
  void* data() const { return on_device_ ? on_device_->data() : on_host_.get(); }

 private:
  std::unique_ptr<std::byte, FreeAligned> on_host_;
  std::unique_ptr<cuda::DeviceScratch> on_device_;
};

}  // namespace

std::string_view Plan::name() const { return implementation ? implementation->name : "none"; }
std::string Plan::describe() const { return implementation ? implementation->describe(problem) : std::string(); }

Plan make_plan(const Problem& problem, std::string_view implementation, const Executor* executor) {
  validate(problem);
  const int workers = workers_of(executor ? *executor : default_executor());
  std::string refusals, names;
  for (const Implementation* row : plan::implementations()) {
    names += (names.empty() ? "" : ", ") + std::string(row->name);
    if (implementation.empty() ? is_reference(*row) : implementation != row->name) continue;
    const std::string refusal = row->why_not(problem);
    if (refusal.empty()) return {problem, row, workers, row->workspace_bytes(problem, workers)};
    refusals += "; " + std::string(row->name) + ": " + refusal;
  }
  if (refusals.empty() && !implementation.empty()) {
    throw Error(ErrorCode::bad_value,
                text("implementation '", shown(implementation), "' is unknown here; there are ", names));
  }
  throw Error(ErrorCode::unsupported, text("no implementation accepts \"", to_string(problem), "\"", refusals));
}

void run(const Plan& plan, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Options& options,
         void* workspace) {
  if (!plan.implementation) throw Error(ErrorCode::bad_value, "the plan is empty; make_plan makes one");
  const Arguments arguments = collect(q, k, v, out, options);
  const Problem problem = problem_of(arguments, options);
  if (problem != plan.problem) {
    throw Error(ErrorCode::bad_shape, text("the tensors are of \"", to_string(problem), "\" but the plan is for \"",
                                           to_string(plan.problem), "\""));
  }
  check_apart(arguments);
  Executor& host = options.executor ? *options.executor : default_executor();
  GuardedExecutor executor(host, workers_of(host));
  if (executor.workers() > plan.workers) {
    throw Error(ErrorCode::bad_value,
                text("the executor has ", executor.workers(), " workers but the plan was made for ", plan.workers));
  }
  if (plan.workspace_bytes > 0 && (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 64 != 0)) {
    throw Error(ErrorCode::bad_value, text("workspace must point to ", plan.workspace_bytes, " bytes aligned to 64"));
  }
  plan.implementation->run(problem, arguments, workspace, executor, options.stream);
}

Problem make_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Options& options) {
  return problem_of(collect(q, k, v, out, options), options);
}

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Options& options) {
  const Arguments arguments = collect(q, k, v, out, options);
  const Problem problem = problem_of(arguments, options);
  check_apart(arguments);
  Executor& host = options.executor ? *options.executor : default_executor();
  const Plan plan = make_plan(problem, options.implementation, &host);
  GuardedExecutor executor(host, plan.workers);
  const Scratch workspace(problem.device, plan.workspace_bytes, options.stream);
  plan.implementation->run(problem, arguments, workspace.data(), executor, options.stream);
}

std::string explain(const Problem& problem) {
  validate(problem);
  std::string out = to_string(problem) + "\n";
  bool chosen = false;
  for (const Implementation* row : plan::implementations()) {
    const std::string refusal = row->why_not(problem);
    const bool taken = !chosen && refusal.empty() && !is_reference(*row);
    chosen = chosen || taken;
    out += std::string(taken ? "* " : "  ") + row->name + ": ";
    if (!refusal.empty())
      out += "no, " + refusal;
    else
      out += row->describe(problem) + (taken                ? ""
                                       : is_reference(*row) ? " (only by name)"
                                                            : " (accepts; stands behind the choice)");
    out += "\n";
  }
  return out;
}

}  // namespace onepass
