// The host half of cpu.flash.*: how a problem is cut into tasks, where K and V are read, how much memory that takes.
#include "cpu/flash/flash.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "algebra/split.hpp"
#include "base/parallel.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/targets.hpp"

namespace onepass::cpu::flash {
namespace {

constexpr std::int64_t kPackedBytes = std::int64_t{64} << 20;  // of K and V at a time
constexpr std::int64_t kWantTasks = 32;  // fewer panels per task until there are that many: K and V are in cache anyway
constexpr std::int64_t kFewTasks = 16;   // below, the keys are split as well
constexpr std::int64_t kInvariantRows = 64;  // of a K/V head, at most, for batch_invariant to cut the keys
constexpr std::int64_t kSplitKeys = 1024;  // at least, per split: writing and joining a partial costs about 3 % of that

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// By shape alone.
struct Config {
  int panels = 1;
  std::int64_t row_blocks = 0;  // of the longest sequence
  KeySplits splits;
  Source k = Source::block, v = Source::block;
  std::int64_t slots = 0;  // K/V heads per wave
};

Config config_of(const Problem& p, const Geometry& g) {
  const std::int64_t heads = p.batch * p.heads_kv, rows = p.seq_q * p.group(), panels = ceil_div(rows, g.panel());
  Config c;
  c.panels = static_cast<int>(std::clamp<std::int64_t>(panels, 1, g.panels));
  while (c.panels > 1 && heads * ceil_div(panels, c.panels) < kWantTasks) c.panels = (c.panels + 1) / 2;
  c.row_blocks = ceil_div(panels, c.panels);
  const std::int64_t tasks = heads * c.row_blocks;
  c.splits = tasks < kFewTasks ? split_keys(tasks, p.seq_k, g.block, kSplitKeys) : KeySplits{1, p.seq_k};
  // By the rows of a head alone, so that a long prompt's partial results do not grow with its keys.
  if (p.batch_invariant) c.splits = rows <= kInvariantRows ? fixed_splits(p.seq_k, g.block) : KeySplits{1, p.seq_k};
  if (p.seqused && !p.batch_invariant && c.splits.count > 1) c.splits.granule = g.block;

  const std::int64_t head_bytes = p.seq_k * (p.dim_qk + p.dim_v) * static_cast<std::int64_t>(sizeof(float));
  // A block of keys is read in place where it is one run.
  const bool f32 = p.key_dtype() == DType::f32 && (!p.paged() || p.page_size % g.block == 0),
             pack = c.row_blocks > 1 && head_bytes <= kPackedBytes;
  // Rows far apart cost TLB misses and cache conflicts: 25 points of the peak at 8 KB. A task of one panel reads each
  // row once and gains nothing by copying it.
  const bool compact = f32 && p.layout.k[2] == p.dim_qk;
  c.k = c.v = pack ? Source::packed : f32 && panels <= 1 ? Source::in_place : Source::block;
  if (compact) c.k = Source::in_place;
  c.slots =
      pack ? std::min(heads, std::max<std::int64_t>(1, kPackedBytes / std::max<std::int64_t>(head_bytes, 1))) : heads;
  return c;
}

struct Memory {
  Partials partials;
  float *packed_k = nullptr, *packed_v = nullptr;
  std::uint8_t* packed_finite = nullptr;
  std::uint32_t* packed_flags = nullptr;
};
Memory book(Workspace& w, const Problem& p, const Geometry& g, const Config& c) {
  Memory m;
  if (c.splits.count > 1) m.partials = book_partials(w, p, c.splits.count);
  if (c.k == Source::packed) m.packed_k = w.take<float>(c.slots * p.seq_k * p.dim_qk);
  if (c.v == Source::packed) {
    m.packed_v = w.take<float>(c.slots * p.seq_k * p.dim_v);
    const std::int64_t blocks = c.slots * ceil_div(p.seq_k, g.block);
    m.packed_finite = w.take<std::uint8_t>(blocks);
    m.packed_flags = w.take<std::uint32_t>(blocks * g.flag_words() * p.dim_v);
  }
  return m;
}

std::string_view name_of(Source s) {
  return s == Source::packed ? "packed once" : s == Source::block ? "packed by block" : "in place";
}

class State final : public PlanState {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        config_(config_of(*problem, kernels.geometry)),
        mods_(request.mods),
        unit_(score_unit_of(*problem)) {
    Workspace shared, one;
    book(shared, *problem, kernels.geometry, config_);
    book_scratch(one, *problem, kernels.geometry, config_.panels);
    scratch_bytes_ = one.bytes();
    workspace_bytes = shared.bytes() + static_cast<std::size_t>(request.workers) * scratch_bytes_;
  }

  std::string describe() const override {
    const Geometry& g = kernels_.geometry;
    const Config& c = config_;
    return text(g.panel(), " x ", g.block, " tiles, ", c.panels * g.panel(), " rows per task, ",
                problem->batch * problem->heads_kv * c.row_blocks * c.splits.count, " tasks, ", c.splits.count,
                " key split", c.splits.count > 1 ? "s" : "", ", K ", name_of(c.k), ", V ", name_of(c.v));
  }

  void run(const Tensors& a, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const Config& c = config_;
    const Geometry& g = kernels_.geometry;
    Workspace w(memory);
    const Memory m = book(w, p, g, c);
    std::byte* scratch_base = w.take<std::byte>(0);
    const Call call{p,
                    a,
                    g,
                    c.k,
                    c.v,
                    c.panels,
                    c.splits,
                    m.partials,
                    m.packed_k,
                    m.packed_v,
                    m.packed_finite,
                    m.packed_flags,
                    Dropout::of(p.dropout_p, p.seed),
                    *mods_};
    const std::int64_t heads = p.batch * p.heads_kv, block_rows = std::int64_t{c.panels} * g.panel();
    const bool last_rows_see_most = p.band.causal || p.band.right >= 0;

    for (std::int64_t first = 0; first < heads; first += c.slots) {
      const std::int64_t slots = std::min(c.slots, heads - first);
      const auto task_of = [&](std::int64_t slot) {
        const std::int64_t batch = (first + slot) / p.heads_kv;
        return Task{sequence_of(p, a, batch), batch, (first + slot) % p.heads_kv, slot, 0, 0, 0};
      };
      if (c.v == Source::packed) {
        // Heads inside, keys outside: the heads of a [batch, seq, heads, dim] token share its pages.
        const std::int64_t blocks = ceil_div(p.seq_k, g.block);
        auto pack = [&](std::int64_t t, int) {
          const Task task = task_of(t % slots);
          const std::int64_t lo = t / slots * g.block;
          kernels_.pack(call, task, lo, std::min(lo + g.block, task.seq.seq_k));
        };
        parallel(executor, slots * blocks, pack);
      }
      auto attend = [&](std::int64_t t, int worker) {
        Task task = task_of(t / (c.row_blocks * c.splits.count));
        const std::int64_t rows = task.seq.seq_q * p.group(), order = t / c.splits.count % c.row_blocks;
        const std::int64_t block = last_rows_see_most ? c.row_blocks - 1 - order : order;
        task.row_lo = block * block_rows;
        task.row_hi = std::min(task.row_lo + block_rows, rows);
        task.split = t % c.splits.count;
        if (task.row_lo >= task.row_hi) return;
        Workspace own(scratch_base + static_cast<std::size_t>(worker) * scratch_bytes_);
        kernels_.run(call, task, book_scratch(own, p, g, c.panels));
      };
      parallel(executor, slots * c.row_blocks * c.splits.count, attend);
    }
    if (c.splits.count > 1) combine(p, a, m.partials, unit_, executor);
  }

 private:
  const Kernels& kernels_;
  const Config config_;
  const std::shared_ptr<const Mods> mods_;
  const ScoreUnit unit_;
  std::size_t scratch_bytes_ = 0;
};

// ---- a row of the list for the kernels of one instruction set

template <std::int64_t target>
Decision plan(const Request& request) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const Problem& p = *request.problem;
  if (std::string why = why_elsewhere(p, target); !why.empty()) return Decision::no(why);
  if (p.seq_q > kMax || p.seq_k > kMax)
    return Decision::no(text("a sequence must have at most ", kMax, " tokens (got ", std::max(p.seq_q, p.seq_k), ")"));
  if (std::string why = why_no_alibi(p, kMax - std::max(p.seq_q, p.seq_k)); !why.empty()) return Decision::no(why);
  const Kernels& own =
      *std::find_if(kernels().begin(), kernels().end(), [](const Kernels& k) { return k.target == target; });
  return {{}, std::make_shared<State>(request, own)};
}

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
  if (p.bool_mask || !p.mask_mod.empty()) s.mask = w.take<float>((g.block + 3) * panel);
  if (!p.score_mod.empty() || !p.mask_mod.empty()) {
    s.mods.numbers = w.take<float>(Expression::kMaxSteps * kExprBlock);
    s.mods.integers = w.take<std::int32_t>(Expression::kMaxSteps * kExprBlock);
  }
  return s;
}
Scratch book_scratch(Workspace& w, const Problem& p, const Geometry& g, int panels) {
  const std::int64_t rows = panels * g.panel();
  Scratch s = book_tiles(w, p, g, panels);
  s.q = w.take<float>(rows * (p.dim_qk + 3));
  s.out = w.take<float>(rows * (p.dim_v + 3));
  s.m = w.take<float>(rows);
  s.l = w.take<float>(rows);
  s.lost = w.take<std::uint32_t>(rows * p.dim_v);
  s.flags = w.take<std::uint32_t>(g.flag_words() * p.dim_v);
  s.visible = w.take<std::uint32_t>(std::int64_t{g.flag_words()} * g.panel());
  return s;
}

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) Implementation{"cpu.flash." isa, plan<target>},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::flash
