// The host half of cpu.flash.*: how a problem is cut into tasks, where K and V are read, how much memory that takes.
#include "cpu/flash/flash.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "core/split.hpp"
#include "cpu/common/targets.hpp"

namespace onepass::cpu::flash {
namespace {

constexpr std::int64_t kPackedBytes = std::int64_t{64} << 20;  // of K and V at a time
constexpr std::int64_t kWantTasks = 32;  // fewer panels per task until there are that many: K and V are in cache anyway
constexpr std::int64_t kFewTasks = 16;   // below, the keys are split as well
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

  const std::int64_t head_bytes = p.seq_k * (p.dim_qk + p.dim_v) * static_cast<std::int64_t>(sizeof(float));
  const bool f32 = p.dtype == DType::f32, pack = c.row_blocks > 1 && head_bytes <= kPackedBytes;
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
};
Memory book(Workspace& w, const Problem& p, const Config& c) {
  Memory m;
  if (c.splits.count > 1) m.partials = book_partials(w, p, c.splits.count);
  if (c.k == Source::packed) m.packed_k = w.take<float>(c.slots * p.seq_k * p.dim_qk);
  if (c.v == Source::packed) m.packed_v = w.take<float>(c.slots * p.seq_k * p.dim_v);
  return m;
}

template <class F>
void parallel(Executor& executor, std::int64_t tasks, F& body) {
  executor.parallel_for(tasks, [](void* f, std::int64_t t, int worker) { (*static_cast<F*>(f))(t, worker); }, &body);
}

void run(const Kernels& kernels, const Problem& p, const Arguments& a, void* memory, Executor& executor) {
  const Config c = config_of(p, kernels.geometry);
  Workspace w(memory);
  const Memory m = book(w, p, c);
  std::byte* scratch_base = w.take<std::byte>(0);
  Workspace one;
  book_scratch(one, p, kernels.geometry, c.panels);
  const Mods mods = mods_of(p);
  const Call call{p,          a,          kernels.geometry, c.k,
                  c.v,        c.panels,   c.splits.count,   c.splits.chunk,
                  m.partials, m.packed_k, m.packed_v,       Dropout::of(p.dropout_p, p.seed),
                  mods};
  const std::int64_t heads = p.batch * p.heads_kv, block_rows = std::int64_t{c.panels} * kernels.geometry.panel();
  const bool last_rows_see_most = p.band.causal || p.band.right >= 0;

  for (std::int64_t first = 0; first < heads; first += c.slots) {
    const std::int64_t slots = std::min(c.slots, heads - first);
    const auto task_of = [&](std::int64_t slot) {
      const std::int64_t batch = (first + slot) / p.heads_kv;
      return Task{sequence_of(p, a, batch), batch, (first + slot) % p.heads_kv, slot, 0, 0, 0};
    };
    if (c.v == Source::packed) {
      // Heads inside, keys outside: the heads of a [batch, seq, heads, dim] token share its pages.
      const std::int64_t blocks = ceil_div(p.seq_k, kernels.geometry.block);
      auto pack = [&](std::int64_t t, int) {
        const Task task = task_of(t % slots);
        const std::int64_t lo = t / slots * kernels.geometry.block;
        kernels.pack(call, task, lo, std::min(lo + kernels.geometry.block, task.seq.seq_k));
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
      Workspace own(scratch_base + static_cast<std::size_t>(worker) * one.bytes());
      kernels.run(call, task, book_scratch(own, p, kernels.geometry, c.panels));
    };
    parallel(executor, slots * c.row_blocks * c.splits.count, attend);
  }
  if (c.splits.count > 1) combine(p, a, m.partials, score_unit_of(p), executor);
}

// ---- a row of the list for the kernels of one instruction set

template <std::int64_t target>
const Kernels& kernels_for() {
  return *std::find_if(kernels().begin(), kernels().end(), [](const Kernels& k) { return k.target == target; });
}

template <std::int64_t target>
std::string why_not(const Problem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (p.device.kind != DeviceKind::cpu) return "the tensors are on " + to_string(p.device) + "; it computes on the CPU";
  if (!has_target(target)) return std::string("this CPU has no ") + hwy::TargetName(target);
  if (p.seq_q > kMax || p.seq_k > kMax)
    return text("a sequence of ", std::max(p.seq_q, p.seq_k), " is longer than ", kMax);
  return why_no_alibi(p, kMax - std::max(p.seq_q, p.seq_k));
}

std::string_view name_of(Source s) {
  return s == Source::packed ? "packed once" : s == Source::block ? "packed by block" : "in place";
}

template <std::int64_t target>
std::string describe(const Problem& p) {
  const Geometry& g = kernels_for<target>().geometry;
  const Config c = config_of(p, g);
  return text(g.panel(), " x ", g.block, " tiles, ", c.panels * g.panel(), " rows per task, ",
              p.batch * p.heads_kv * c.row_blocks * c.splits.count, " tasks, ", c.splits.count, " key split",
              c.splits.count > 1 ? "s" : "", ", K ", name_of(c.k), ", V ", name_of(c.v));
}

template <std::int64_t target>
std::size_t workspace_bytes(const Problem& p, int workers) {
  const Geometry& g = kernels_for<target>().geometry;
  const Config c = config_of(p, g);
  Workspace shared, one;
  book(shared, p, c);
  book_scratch(one, p, g, c.panels);
  return shared.bytes() + static_cast<std::size_t>(workers) * one.bytes();
}

template <std::int64_t target>
void run_on(const Problem& p, const Arguments& a, void* memory, Executor& executor, void*) {
  run(kernels_for<target>(), p, a, memory, executor);
}

}  // namespace

Scratch book_scratch(Workspace& w, const Problem& p, const Geometry& g, int panels) {
  const std::int64_t panel = g.panel(), rows = panels * panel;
  Scratch s{};
  s.q = w.take<float>(rows * (p.dim_qk + 3));
  s.out = w.take<float>(rows * (p.dim_v + 3));
  s.scores = w.take<float>(g.block * panel);
  s.m = w.take<float>(rows);
  s.l = w.take<float>(rows);
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

std::span<const Implementation> implementations() {
#define ONEPASS_ROW(N, target, isa) \
  Implementation{"cpu.flash." isa, why_not<target>, describe<target>, workspace_bytes<target>, run_on<target>},
  static const Implementation rows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  return rows;
}

}  // namespace onepass::cpu::flash
