#include "problem/block_mask.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

std::string buffer_name(const Problem& p) {
  std::string name = "block_mask";
  while (std::ranges::count(p.mod_buffers, name, &ModBuffer::name) > 0) name += '_';
  return name;
}

// (state != 0) && (state == 2 || (the caller's mask_mod))
std::string mask_text(const Problem& p, const std::string& buffer) {
  const BroadcastDims& spans = *p.block_mask;
  const std::string row = spans.rows ? text("q_index / ", p.tile_q()) : "0",
                    key = spans.keys ? text("k_index / ", p.tile_k()) : "0",
                    state = text(buffer, "[", spans.batch ? "batch" : "0", ", ", spans.heads ? "head" : "0", ", ", row,
                                 ", ", key, "]");
  return p.mask_mod.empty() ? text(state, " != 0") : text(state, " != 0 && (", state, " == 2 || (", p.mask_mod, "))");
}

class State final : public PlanState {
 public:
  State(const Request& request, std::shared_ptr<const PlanState> inner)
      : PlanState(request.problem), inner_(std::move(inner)) {
    workspace_bytes = inner_->workspace_bytes;
  }
  std::string describe() const override {
    return text(inner_->describe(), ", block_mask of ", problem->tile_q(), " x ", problem->tile_k(), " tiles");
  }
  void prepare() const override { inner_->prepare(); }
  void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const override {
    inner_->run(without_block_mask(*problem, tensors), workspace, executor, stream);
  }
  const PlanState& inner() const { return *inner_; }

 private:
  const std::shared_ptr<const PlanState> inner_;
};

}  // namespace

Problem without_block_mask(const Problem& problem) {
  if (!problem.block_mask) return problem;
  Problem p = problem;
  const RoleRow& row = row_of(Role::block_mask);
  const RoleShape shape = shape_of(p, row);
  const std::string buffer = buffer_name(p);
  p.mask_mod = mask_text(p, buffer);
  p.mod_buffers.push_back({buffer, shape.dtype, shape.rank, shape.size});
  p.block_mask.reset();
  p.layout.*row.layout = {};
  p.alignment[static_cast<std::size_t>(row.role)] = kAligned[0];
  p.mask_tile_q = p.mask_tile_k = 0;
  return p;
}

Tensors without_block_mask(const Problem& problem, const Tensors& tensors) {
  if (!problem.block_mask) return tensors;
  Tensors t = tensors;
  t.mod_buffers.push_back({buffer_name(problem), t.block_mask});
  t.block_mask = {};
  return t;
}

Decision decide_without_block_mask(const Request& request, Decision (*decided)(const Implementation&, const Request&),
                                   const Implementation& row) {
  Request inner{std::make_shared<const Problem>(without_block_mask(*request.problem)), nullptr, request.workers};
  try {  // the text is longer than the caller's, which was read
    check_mod_text("with block_mask, mask_mod", inner.problem->mask_mod);
    const bool here = request.problem->device.kind == DeviceKind::cpu;
    inner.mods = std::make_shared<const Mods>(here ? mods_of(*inner.problem, inner.problem->mod_buffers) : Mods{});
  } catch (const Error& e) {
    return Decision::no(e.what());
  }
  Decision d = decided(row, inner);
  if (d) d.state = std::make_shared<State>(request, std::move(d.state));
  return d;
}

const PlanState& computing(const PlanState& state) {
  const auto* const masked = dynamic_cast<const State*>(&state);
  return masked ? masked->inner() : state;
}

}  // namespace onepass
