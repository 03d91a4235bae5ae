// The ordered list of implementations and the choice among them.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "cpu/implementations.hpp"
#include "cuda/implementations.hpp"
#include "onepass/block_mask.hpp"
#include "plan/dataflow.hpp"
#include "plan/guarded_executor.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/block_mask.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/implementation.hpp"
#include "problem/roles.hpp"
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
  if (p.fp8) return quantizing(all);
  if (!p.op->kernels_of) return all;
  const Chosen chosen = choose_dataflow(p, workers);
  const auto of_chosen = [&](const Implementation* row) { return row->dataflow == chosen.dataflow; };
  std::stable_partition(all.begin(), all.end(), of_chosen);  // clang 14 cannot compile the one of ranges
  if (why_) *why_ = why(p, workers, chosen);
  return all;
}

namespace {
// FP8 attention goes by the name of the attention in it too.
bool is_named(const Implementation& row, std::string_view name) {
  return name == row.name || (row.attention && name == row.attention->name);
}
}  // namespace

Plan plan_for(const Request& request, std::string_view implementation) {
  const Problem& problem = *request.problem;
  std::string refusals, names;
  for (const Implementation* row : implementations(problem, request.workers)) {
    if (implementation.empty() ? reference::is_reference(*row) : !is_named(*row, implementation)) continue;
    Decision decision = decide(*row, request);
    if (decision) return Plan(std::move(decision.state));
    refusals += "; " + std::string(row->name) + ": " + decision.refusal;
  }
  if (refusals.empty() && !implementation.empty()) {
    for (const Implementation* row : implementations(problem, request.workers))
      names += (names.empty() ? "" : ", ") + std::string(row->name);
    throw Error(ErrorCode::bad_value,
                text("implementation must be one of ", names, " (got '", shown(implementation), "')"));
  }
  throw Error(ErrorCode::unsupported, text("no implementation accepts \"", to_string(problem), "\"", refusals));
}

}  // namespace onepass::plan

namespace onepass {

const PlanState& state_of(const Plan& plan) {
  if (!plan.state()) throw Error(ErrorCode::bad_value, "the plan is empty; make_plan() returns one that is not");
  return *plan.state();
}
const Problem& problem_of(const Plan& plan) { return *state_of(plan).problem; }

inline namespace v0 {

std::string_view Plan::name() const { return state_ ? state_->implementation : "none"; }
std::string Plan::describe() const { return state_ ? state_->describe() : std::string(); }
std::string Plan::problem() const { return to_string(problem_of(*this)); }
Device Plan::device() const { return problem_of(*this).device; }
int Plan::workers() const { return state_ ? state_->workers : 1; }
std::size_t Plan::workspace_bytes() const { return state_ ? state_->workspace_bytes : 0; }

Plan make_plan(std::string_view line, std::string_view implementation, const Executor* executor) {
  return make_plan(parse_problem(line), implementation, executor);
}
void prepare(const Plan& plan) { state_of(plan).prepare(); }
std::string explain(std::string_view line) { return explain(parse_problem(line)); }

}  // namespace v0

Plan make_plan(const Problem& problem, std::string_view implementation, const Executor* executor) {
  Request request = request_for(problem);  // a wrong problem is said before a wrong executor
  request.workers = workers_of(executor ? *executor : default_executor());
  return plan::plan_for(request, implementation);
}

static constexpr double kMostTiles = 1 << 24;  // that explain looks at: a second, and some 100 MB

// The tiles that a block_mask and a mask_mod leave, a line; nothing without them. tensors: those of a call, if there is
// one.
static std::string tiles_of(const Problem& p, const Tensors* tensors) {
  const std::string what = !p.block_mask ? "mask_mod" : p.mask_mod.empty() ? "block_mask" : "block_mask and mask_mod";
  const Problem masked = without_block_mask(p);
  if (masked.mask_mod.empty()) return {};
  const bool known = tensors && p.device.kind == DeviceKind::cpu;
  if (!masked.mod_buffers.empty() && !known)
    return what + ": the number of empty tiles depends on the " + (p.block_mask ? "tensors\n" : "buffers\n");
  const BlockMaskShape shape{.batch = p.block_mask && p.block_mask->batch ? p.batch : 1,
                             .heads = p.block_mask && p.block_mask->heads ? p.heads_q : 1,
                             .seq_q = p.seq_q,
                             .seq_k = p.seq_k,
                             .tile_q = p.tile_q(),
                             .tile_k = p.tile_k()};
  const double tiles =
      static_cast<double>(shape.batch * shape.heads * shape.row_tiles()) * static_cast<double>(shape.key_tiles());
  if (tiles == 0) return what + ": there are no tiles\n";
  if (tiles > kMostTiles)
    return text(what, ": there are too many tiles of ", shape.tile_q, " x ", shape.tile_k, " to count\n");
  try {
    std::vector<NamedTensor> buffers;
    if (known) buffers = without_block_mask(p, *tensors).mod_buffers;
    const BlockMask m = block_mask(masked.mask_mod, buffers, shape);
    return text(what, ": ", m.tiles() - m.mixed.count() - m.full.count(), " of ", m.tiles(), " tiles of ", shape.tile_q,
                " x ", shape.tile_k, " are empty, ", m.full.count(), " need no mask",
                shape.batch * shape.heads == 1 ? " (head 0, batch entry 0)\n" : "\n");
  } catch (const Error&) {  // text for the CUDA compiler alone
    return what + ": only the CUDA compiler reads it, so no tile is known to be empty\n";
  }
}

std::string explain(const Problem& problem, const Tensors* tensors) {
  const Request request = request_for(problem, problem.op->kernels_of ? workers_of(default_executor()) : 1);
  std::string why;
  const auto rows = plan::implementations(problem, request.workers, &why);
  std::string out = to_string(problem) + "\n" + why + (why.empty() ? "" : "\n") + tiles_of(problem, tensors);
  bool chosen = false;
  for (const Implementation* row : rows) {
    const Decision decision = decide(*row, request);
    const bool taken = !chosen && decision && !reference::is_reference(*row);
    chosen = chosen || taken;
    out += std::string(taken ? "* " : "  ") + row->name + ": ";
    if (!decision)
      out += "no, " + decision.refusal;
    else
      out += decision.state->describe() + (taken                           ? ""
                                           : reference::is_reference(*row) ? " (only by name)"
                                                                           : " (supported, lower priority)");
    out += "\n";
  }
  return out;
}

}  // namespace onepass
