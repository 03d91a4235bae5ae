// The host half of cpu.backward_jvp.*: D and its derivative of every row, the tasks of a backward, and the sums of what
// they leave in parts.
#include "cpu/backward_jvp/backward_jvp.hpp"

#include <optional>
#include <string>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cpu/backward/sums.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"

namespace onepass::cpu::backward_jvp {
namespace {

Scratch book_scratch(Workspace& w, const Problem& p, const flash::Geometry& g, const backward::Cut& c,
                     backward::BiasSums bias) {
  const std::int64_t panel = g.panel(), rows = c.panels * panel, tile = (g.block + 3) * panel;
  const auto columns = [&](std::int64_t dim) { return round_up(dim, panel); };
  Scratch s{};
  backward::Scratch& b = s.primal;
  b.flash = flash::book_tiles(w, p, g, c.panels);
  for (float** to : {&b.q, &b.dq, &s.tq}) *to = w.take<float>(rows * backward::columns_of(p.dim_qk));
  for (float** to : {&b.q_rows, &s.tq_rows}) *to = w.take<float>(rows * columns(p.dim_qk));
  b.dout = w.take<float>(rows * backward::columns_of(p.dim_v));
  b.dout_rows = w.take<float>(rows * columns(p.dim_v));
  if (p.tdout) {
    s.tdout = w.take<float>(rows * backward::columns_of(p.dim_v));
    s.tdout_rows = w.take<float>(rows * columns(p.dim_v));
  }
  for (float** to : {&b.after, &b.before, &b.delta, &s.tdelta, &s.tlse}) *to = w.take<float>(rows);
  for (float** to : {&b.ds, &s.moves, &s.tds}) *to = w.take<float>(g.block * panel);
  for (float** to : {&b.k_tiles, &s.tk_tiles, &s.tk}) *to = w.take<float>(g.block * p.dim_qk);
  s.tv = w.take<float>(g.block * p.dim_v);
  b.dk = w.take<float>(c.key_chunk * columns(p.dim_qk));
  b.dv = w.take<float>(c.key_chunk * columns(p.dim_v));
  if (p.softcap > 0) s.capped = w.take<float>(tile);
  if (p.tbias) s.tbias = w.take<float>(tile);
  if (!p.score_mod.empty()) {
    for (float** to : {&s.mod_slope, &s.mod_curve}) *to = w.take<float>(g.block * panel);
    b.duals = w.take<float>(4 * g.block * panel);
    b.dual_numbers = w.take<float>(std::int64_t{4} * Expression::kMaxSteps * kExprBlock);
  }
  if (bias != backward::BiasSums::none) b.pairs = w.take<float>(tile);
  if (p.gradients.dalibi_slopes) b.slopes = w.take<double>(p.group());
  return s;
}

class State final : public PlanState {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        backward_(kernels_for(backward::kernels(), kernels.target)),
        plan_(backward::plan_of(*problem, kernels_.geometry, {problem->seq_q, problem->seq_k})),
        booked_(backward::booked_cut(*problem, kernels_.geometry, plan_.cut)),
        mods_(request.mods) {
    Workspace shared, one;
    backward::book_parts(shared, *problem, plan_);
    shared.take<float>(backward::rows_of(*problem));
    book_scratch(one, *problem, kernels_.geometry, booked_, plan_.bias);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
  }

  std::string describe() const override {
    const flash::Geometry& g = kernels_.geometry;
    const backward::Cut& c = plan_.cut;
    return text(g.panel(), " x ", g.block, " tiles, ", c.panels * g.panel(), " rows per block, ", plan_.tasks(*problem),
                " tasks, ", c.key_splits, " key split", c.key_splits > 1 ? "s" : "", ", ", c.row_splits, " row split",
                c.row_splits > 1 ? "s" : "", ", deterministic");
  }

  void run(const Tensors& given, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const Tensors a = with_derivatives_as_gradients(given);
    const backward::Plan plan = p.varlen ? backward::plan_of(p, kernels_.geometry, longest_of(p, a), &booked_) : plan_;
    Workspace w(memory);
    const backward::Parts parts = backward::book_parts(w, p, plan);
    float* const tdelta = w.take<float>(backward::rows_of(p));
    const std::optional<MaskBounds> bounds = mask_bounds_of(p, a, *mods_);
    const Call call{backward::call_of(p, a, kernels_.geometry, plan, parts, *mods_, bounds), given, tdelta};
    backward::compute(
        call.primal, plan, parts, backward_, executor,
        [&](const backward::Task& task, std::int64_t head) { kernels_.stats(call, task, head); },
        [&](const backward::Task& task, int worker) {
          Workspace own = memory_.of_worker(memory, worker);
          kernels_.run(call, task, book_scratch(own, p, kernels_.geometry, plan.cut, plan.bias));
        });
  }

 private:
  const Kernels& kernels_;
  const backward::Kernels& backward_;  // which add up the parts
  const backward::Plan plan_;          // of a call whose sequences are as long as they may be
  const backward::Cut booked_;
  const std::shared_ptr<const Mods> mods_;
  CallMemory memory_;
};

}  // namespace

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) \
  Implementation{"cpu.backward_jvp." isa, plan_isa<State, kernels, target>, kBackwardJvp},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::backward_jvp
