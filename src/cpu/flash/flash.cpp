// The host half of cpu.flash.*: its plan, and the loops over heads and tasks of a call.
#include "cpu/flash/flash.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/common/call_memory.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/queries.hpp"
#include "cpu/common/targets.hpp"
#include "cpu/flash/cut.hpp"

namespace onepass::cpu::flash {
namespace {

std::string_view name_of(Source s) {
  return s == Source::packed ? "packed once" : s == Source::block ? "packed by block" : "in place";
}

class State final : public PlanState, public OfQueries {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        most_(waves_of(*problem, kernels.geometry, {problem->seq_q, problem->seq_k})),
        mods_(request.mods),
        unit_(score_unit_of(*problem)) {
    Workspace shared, one;
    book(shared, *problem, kernels.geometry, most_, splits_at_most(*problem, kernels.geometry));
    book_scratch(one, *problem, kernels.geometry, most_.panels);
    memory_ = {shared, one};
    workspace_bytes = memory_.bytes(request.workers);
  }

  std::string describe() const override {
    const Geometry& g = kernels_.geometry;
    const Waves& c = most_;
    return text(g.panel(), " x ", g.block, " tiles, ", c.panels * g.panel(), " rows per task, ",
                problem->batch * problem->heads_kv * c.row_blocks * c.splits.count, " tasks, ", c.splits.count,
                " key split", c.splits.count > 1 ? "s" : "", ", K ", name_of(c.k), ", V ", name_of(c.v));
  }

  void run(const Tensors& a, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const Geometry& g = kernels_.geometry;
    const std::vector<std::int64_t> entries = entries_of(p, a, *this);
    const Longest longest = longest_of(p, a, entries);
    const Waves waves = has_lengths(p) ? waves_of(p, g, longest) : most_;
    Workspace w(memory);
    const Memory m = book(w, p, g, most_, waves.splits.count);
    const std::optional<MaskBounds> bounds = mask_bounds_of(p, a, *mods_);
    const Call call = call_of(p, a, g, waves, longest, m, *mods_, bounds);
    each_wave(
        call, waves, entries, executor,
        [&](const Task& task, std::int64_t lo, std::int64_t hi) { kernels_.pack(call, task, lo, hi); },
        [&](const Task& task, int worker) {
          Workspace own = memory_.of_worker(memory, worker);
          kernels_.run(call, task, book_scratch(own, p, g, waves.panels));
        });
    if (waves.splits.count > 1) combine(p, a, m.partials, unit_, entries, executor);
  }

 private:
  const Kernels& kernels_;
  const Waves most_;  // of a call whose sequences are as long as they may be
  const std::shared_ptr<const Mods> mods_;
  const ScoreUnit unit_;
  CallMemory memory_;
};

}  // namespace

Scratch book_tiles(Workspace& w, const Problem& p, const Geometry& g, int panels) {
  const std::int64_t panel = g.panel(), rows = panels * panel;
  Scratch s{};
  s.scores = w.take<float>(g.block * panel);
  s.lo = w.take<std::int32_t>(rows);
  s.hi = w.take<std::int32_t>(rows);
  s.k = w.take<float>(g.block * p.dim_qk);
  s.v = w.take<float>(g.block * p.dim_v);
  if (p.bias) s.bias = w.take<float>((g.block + 3) * panel);
  if (p.bool_mask || !p.mask_mod.empty() || p.drafts > 0) s.mask = w.take<float>((g.block + 3) * panel);
  if (!p.mask_mod.empty()) s.tiles = w.take<Tile>(panels * tiles_of(p, g));
  s.mods = book_mods(w, p);
  return s;
}

namespace {
MaskBox box_of(const Problem& p, const Task& task, std::int64_t row, std::int64_t rows, std::int64_t first,
               std::int64_t end) {
  const std::int64_t group = p.group(), head = task.head_kv * group;
  const std::int64_t last_token = std::min((row + rows - 1) / group, task.seq.seq_q - 1);
  return {task.batch, task.batch, head, head + group - 1, row / group, last_token, first, end - 1};
}
}  // namespace

void look_at_mask(const Call& call, const Task& task, std::int64_t row, std::int64_t rows, std::int64_t first,
                  std::int64_t end, Tile* tiles) {
  const MaskBox box = box_of(call.problem, task, row, rows, first, end);
  call.mask_bounds->classify_tiles(box, rows, call.geometry.block, tiles, 0);
}
Tile shown_of(const Call& call, const Task& task, std::int64_t row, std::int64_t rows, std::int64_t first,
              std::int64_t end) {
  if (!call.mask_bounds || rows <= 0) return Tile::partial;
  return call.mask_bounds->classify(box_of(call.problem, task, row, rows, first, end));
}

Scratch book_scratch(Workspace& w, const Problem& p, const Geometry& g, int panels) {
  const std::int64_t rows = panels * g.panel();
  Scratch s = book_tiles(w, p, g, panels);
  s.q = w.take<float>(rows * (p.dim_qk + 3));
  s.out = w.take<float>(rows * (p.dim_v + 3));
  s.m = w.take<float>(rows);
  s.l = w.take<float>(rows);
  if (p.entropy) s.t = w.take<float>(rows);
  if (p.batch_invariant) {
    s.joined_out = w.take<float>(rows * (p.dim_v + 3));
    s.joined_m = w.take<float>(rows);
    s.joined_l = w.take<float>(rows);
    if (p.entropy) s.joined_entropy = w.take<float>(rows);
  }
  s.lost = w.take<std::uint32_t>(rows * p.dim_v);
  s.flags = w.take<std::uint32_t>(g.flag_words() * p.dim_v);
  s.visible = w.take<std::uint32_t>(std::int64_t{g.flag_words()} * g.panel());
  return s;
}

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.flash." isa, plan_isa<State, kernels, target>},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::flash
