// The host half of cpu.jvp.*: its plan, and the loops over heads and tasks of a call.
#include "cpu/jvp/jvp.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"
#include "cpu/flash/cut.hpp"
#include "problem/attention/score.hpp"

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
    shared_bytes_ = shared.bytes(), scratch_bytes_ = one.bytes();
    workspace_bytes = shared_bytes_ + static_cast<std::size_t>(request.workers) * scratch_bytes_;
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
    std::byte* const scratch_base = static_cast<std::byte*>(memory) + shared_bytes_;
    const Tensors tangents = tangents_of(a);
    const auto call_of = [&](const Tensors& tensors, const flash::Memory& m) {
      return flash::Call{.problem = p,
                         .arguments = tensors,
                         .geometry = g,
                         .k_source = waves.k,
                         .v_source = waves.v,
                         .panels = waves.panels,
                         .splits = waves.splits,
                         .partials = {},
                         .seq_k = longest.seq_k,
                         .packed_k = m.packed_k,
                         .packed_v = m.packed_v,
                         .packed_finite = m.packed_finite,
                         .packed_flags = m.packed_flags,
                         .dropout = dropout_of(p, a),
                         .mods = *mods_,
                         .mask_bounds = bounds ? &*bounds : nullptr};
    };
    const Call call{call_of(a, primal), call_of(tangents, tangent)};
    const std::int64_t heads = p.batch * p.heads_kv, block_rows = std::int64_t{waves.panels} * g.panel();
    const bool last_rows_see_most = p.band.causal || p.band.right >= 0;

    for (std::int64_t first = 0; first < heads; first += waves.slots) {
      const std::int64_t slots = std::min(waves.slots, heads - first);
      const auto task_of = [&](std::int64_t slot) {
        const std::int64_t batch = (first + slot) / p.heads_kv;
        return flash::Task{sequence_of(p, a, batch), batch, (first + slot) % p.heads_kv, slot, 0, 0, 0};
      };
      if (waves.v == flash::Source::packed) {
        const std::int64_t blocks = ceil_div(longest.seq_k, g.block);
        parallel(executor, slots * blocks, [&](std::int64_t t, int) {
          const flash::Task task = task_of(t % slots);
          const std::int64_t lo = t / slots * g.block, hi = std::min(lo + g.block, task.seq.seq_k);
          if (lo < hi && flash::shown_of(call.primal, task, 0, task.seq.seq_q * p.group(), lo, hi) == Tile::skip)
            return;
          kernels_.pack(call.primal, task, lo, hi);
          kernels_.pack(call.tangent, task, lo, hi);
        });
      }
      parallel(executor, slots * waves.row_blocks, [&](std::int64_t t, int worker) {
        flash::Task task = task_of(t / waves.row_blocks);
        const std::int64_t order = t % waves.row_blocks,
                           block = last_rows_see_most ? waves.row_blocks - 1 - order : order;
        task.row_lo = block * block_rows;
        task.row_hi = std::min(task.row_lo + block_rows, task.seq.seq_q * p.group());
        if (task.row_lo >= task.row_hi) return;
        Workspace own(scratch_base + static_cast<std::size_t>(worker) * scratch_bytes_);
        kernels_.run(call, task, book_worker(own, p, g, waves.panels));
      });
    }
  }

 private:
  const Kernels& kernels_;
  const flash::Waves most_;  // of a call whose sequences are as long as they may be
  const std::shared_ptr<const Mods> mods_;
  std::size_t shared_bytes_ = 0, scratch_bytes_ = 0;
};

template <std::int64_t target>
Decision plan(const Request& request) {
  return plan_on<State>(request, kernels_for(kernels(), target));
}

}  // namespace

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.jvp." isa, plan<target>, kJvp},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::jvp
