// The host half of cpu.backward.*: D of every row, the tasks, and the sums of what they leave in parts.
#include "cpu/backward/backward.hpp"

#include <optional>
#include <string>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cpu/backward/sums.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"

namespace onepass::cpu::backward {
namespace {

void book_tiles(Workspace& w, const Problem& p, const flash::Geometry& g, const Cut& c, TileScratch& t) {
  const std::int64_t rows = std::int64_t{c.panels} * g.panel(), qk = columns_of(p.dim_qk), v = columns_of(p.dim_v);
  t.k = w.take<std::uint16_t>(c.key_chunk * qk);
  t.k_columns = w.take<std::uint16_t>(c.key_chunk * qk);
  t.v = w.take<std::uint16_t>(c.key_chunk * v);
  t.q = w.take<std::uint32_t>(rows * qk / 2);
  t.q_rows = w.take<std::uint32_t>(rows * qk / 2);
  t.dout = w.take<std::uint32_t>(rows * v / 2);
  t.dout_rows = w.take<std::uint32_t>(rows * v / 2);
  t.weights = w.take<std::uint16_t>(tile_parts(p) * rows * g.block);
  t.ds = w.take<std::uint16_t>(tile_parts(p) * rows * g.block);
  t.pairs = w.take<std::uint32_t>(tile_parts(p) * std::int64_t{g.panel()} * g.block / 2);
  t.groups = w.take<std::int8_t>(4 * g.panels);
}

Scratch book_scratch(Workspace& w, const Problem& p, const Kernels& kernels, const Cut& c, BiasSums bias) {
  const flash::Geometry& g = kernels.geometry;
  const std::int64_t panel = g.panel(), rows = c.panels * panel;
  const auto columns = [&](std::int64_t dim) { return round_up(dim, panel); };
  Scratch s{};
  s.flash = flash::book_tiles(w, p, g, c.panels);
  s.q = w.take<float>(rows * columns_of(p.dim_qk));
  s.dout = w.take<float>(rows * columns_of(p.dim_v));
  s.dq = w.take<float>(rows * columns_of(p.dim_qk));
  s.q_rows = w.take<float>(rows * columns(p.dim_qk));
  s.dout_rows = w.take<float>(rows * columns(p.dim_v));
  s.after = w.take<float>(rows);
  s.before = w.take<float>(rows);
  s.delta = w.take<float>(rows);
  if (p.dentropy) s.dentropy = w.take<float>(rows);
  s.ds = w.take<float>(g.block * panel);
  s.dout_flags = w.take<float>(rows * columns(p.dim_v));
  s.spoiled = w.take<float>(rows);
  s.visible = w.take<float>(g.block * panel);
  if (p.softcap > 0 || !p.score_mod.empty()) {
    s.q_flags = w.take<float>(rows * columns(p.dim_qk));
    s.k_flags = w.take<float>(g.block * p.dim_qk);
  }
  s.k_tiles = w.take<float>(g.block * p.dim_qk);
  s.dk = w.take<float>(c.key_chunk * columns(p.dim_qk));
  s.dv = w.take<float>(c.key_chunk * columns(p.dim_v));
  if (p.softcap > 0) s.cap_slope = w.take<float>((g.block + 3) * panel);
  if (!p.score_mod.empty()) {
    s.mod_slope = w.take<float>(g.block * panel);
    s.duals = w.take<float>(2 * g.block * panel);
    s.dual_numbers = w.take<float>(std::int64_t{2} * Expression::kMaxSteps * kExprBlock);
  }
  if (bias != BiasSums::none) s.pairs = w.take<float>((g.block + 3) * panel);
  if (p.gradients.dalibi_slopes) s.slopes = w.take<double>(p.group());
  if (kernels.tiles) book_tiles(w, p, g, c, s.tiles);
  return s;
}

class State final : public PlanState {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        plan_(plan_of(*problem, kernels.geometry, {problem->seq_q, problem->seq_k})),
        booked_(booked_cut(*problem, kernels.geometry, plan_.cut)),
        mods_(request.mods) {
    Workspace shared, one;
    book_parts(shared, *problem, plan_);
    book_scratch(one, *problem, kernels, booked_, plan_.bias);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
  }

  std::string describe() const override {
    const flash::Geometry& g = kernels_.geometry;
    const Cut& c = plan_.cut;
    std::string line = text(g.panel(), " x ", g.block, " tiles, ", c.panels * g.panel(), " rows per block, ",
                            plan_.tasks(*problem), " tasks");
    if (plan_.phases > 1) line += text(" in each of ", plan_.phases, " rounds, because heads share the bias");
    line += text(", ", c.key_splits, " key split", c.key_splits > 1 ? "s" : "", ", ", c.row_splits, " row split",
                 c.row_splits > 1 ? "s" : "", ", workspace ", memory_.shared_bytes, " bytes and ", memory_.worker_bytes,
                 " per thread, deterministic");
    return line;
  }

  void run(const Tensors& a, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const Plan plan = p.varlen ? plan_of(p, kernels_.geometry, longest_of(p, a), &booked_) : plan_;
    Workspace w(memory);
    const Parts parts = book_parts(w, p, plan);
    const std::optional<MaskBounds> bounds = mask_bounds_of(p, a, *mods_);
    const Call call = call_of(p, a, kernels_.geometry, plan, parts, *mods_, bounds);
    compute(
        call, plan, parts, kernels_, executor, [&](const Task& task, std::int64_t h) { kernels_.stats(call, task, h); },
        [&](const Task& task, int worker) {
          Workspace own = memory_.of_worker(memory, worker);
          kernels_.run(call, task, book_scratch(own, p, kernels_, plan.cut, plan.bias));
        });
  }

 private:
  const Kernels& kernels_;
  const Plan plan_;  // of a call whose sequences are as long as they may be
  const Cut booked_;
  const std::shared_ptr<const Mods> mods_;
  CallMemory memory_;
};

}  // namespace

Decision plan(const Request& request, const Kernels& own) { return plan_on<State>(request, own); }

bool Call::wants_ds() const {
  const Gradients& g = problem().gradients;
  return g.dq || g.dk || g.dbias || g.dalibi_slopes;
}

std::int64_t Call::dkv_part(const Task& task) const {
  const std::int64_t head = task.batch * problem().heads_kv + task.head_kv;
  return (task.row_split * problem().batch * problem().heads_kv + head) * cut.key_splits + task.key_split;
}

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.backward." isa, plan_isa<State, kernels, target>, kBackward},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::backward
