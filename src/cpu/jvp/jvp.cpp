// The host half of cpu.jvp.*: its plan, and the loops over heads and tasks of a call.
#include "cpu/jvp/jvp.hpp"

#include <optional>
#include <string>

#include "base/text.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/queries.hpp"
#include "cpu/common/targets.hpp"
#include "cpu/flash/cut.hpp"

namespace onepass::cpu::jvp {
namespace {

// Keys are not split: a task sees all of its rows' keys.
flash::Waves unsplit_waves_of(const Problem& p, const flash::Geometry& g, const Longest& longest) {
  flash::Waves w = flash::waves_of(p, g, longest);
  w.splits = {1, longest.seq_k};
  return w;
}

Scratch book_worker(Workspace& w, const Problem& p, const flash::Geometry& g, int panels) {
  const std::int64_t panel = g.panel(), tile = (g.block + 3) * panel;
  Scratch s{};
  s.primal = flash::book_scratch(w, p, g, panels);
  s.tangent = flash::book_scratch(w, p, g, panels);
  s.mu = w.take<float>(panels * panel);
  if (p.softcap > 0) s.cap_slope = w.take<float>(tile);
  if (p.tbias) s.tbias = w.take<float>(tile);
  if (!p.score_mod.empty()) {
    s.mod_slope = w.take<float>(tile);
    s.duals = w.take<float>(2 * g.block * panel);
    s.dual_numbers = w.take<float>(std::int64_t{2} * Expression::kMaxSteps * kExprBlock);
  }
  return s;
}

// The call on tangents, as a call of the forward.
Tensors tangents_of(const Tensors& a) {
  Tensors t = a;
  t.q = a.tq, t.k = a.tk, t.v = a.tv, t.out = a.tout;
  return t;
}

class State final : public PlanState {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        most_(unsplit_waves_of(*problem, kernels.geometry, {problem->seq_q, problem->seq_k})),
        mods_(request.mods) {
    Workspace shared, one;
    book(shared, *problem, kernels.geometry, most_, 1);
    book(shared, *problem, kernels.geometry, most_, 1);
    book_worker(one, *problem, kernels.geometry, most_.panels);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
  }

  std::string describe() const override {
    const flash::Geometry& g = kernels_.geometry;
    return text(g.panel(), " x ", g.block, " tiles, ", most_.panels * g.panel(), " rows per task, ",
                problem->batch * problem->heads_kv * most_.row_blocks, " tasks");
  }

  void run(const Tensors& a, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const flash::Geometry& g = kernels_.geometry;
    const Longest longest = longest_of(p, a);
    const flash::Waves waves = has_lengths(p) ? unsplit_waves_of(p, g, longest) : most_;
    Workspace w(memory);
    const flash::Memory primal = book(w, p, g, most_, 1), tangent = book(w, p, g, most_, 1);
    const std::optional<MaskBounds> bounds = mask_bounds_of(p, a, *mods_);
    const Tensors tangents = tangents_of(a);
    const Call call{flash::call_of(p, a, g, waves, longest, primal, *mods_, bounds),
                    flash::call_of(p, tangents, g, waves, longest, tangent, *mods_, bounds)};
    flash::each_wave(
        call.primal, waves, entries_of(p, a, {}), executor,
        [&](const flash::Task& task, std::int64_t lo, std::int64_t hi) {
          kernels_.pack(call.primal, task, lo, hi);
          kernels_.pack(call.tangent, task, lo, hi);
        },
        [&](const flash::Task& task, int worker) {
          Workspace own = memory_.of_worker(memory, worker);
          kernels_.run(call, task, book_worker(own, p, g, waves.panels));
        });
  }

 private:
  const Kernels& kernels_;
  const flash::Waves most_;  // of a call whose sequences are as long as they may be
  const std::shared_ptr<const Mods> mods_;
  CallMemory memory_;
};

}  // namespace

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.jvp." isa, plan_isa<State, kernels, target>, kJvp},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::jvp
