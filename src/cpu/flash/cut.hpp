// How a call of cpu.flash is cut into tasks, where its K and V are read, the memory that all tasks share, and the loops
// over the tasks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/parallel.hpp"
#include "cpu/common/place.hpp"
#include "cpu/flash/flash.hpp"

namespace onepass::cpu::flash {

// By the longest sequences of a call.
struct Waves {
  int panels = 1;  // per task
  KeySplits splits;
  std::int64_t join_every = 0;
  std::int64_t row_blocks = 0;
  Source k = Source::block, v = Source::block;
  std::int64_t slots = 0;  // K/V heads per wave
};

Waves waves_of(const Problem& problem, const Geometry& geometry, const Longest& longest);
// Splits of any call within the bounds.
std::int64_t splits_at_most(const Problem& problem, const Geometry& geometry);

struct Memory {
  Partials partials;
  float *packed_k = nullptr, *packed_v = nullptr;
  std::uint8_t* packed_finite = nullptr;
  std::uint32_t* packed_flags = nullptr;
};
// most: the waves of a call whose sequences are as long as they may be. splits: those of the call, or the most.
Memory book(Workspace& workspace, const Problem& problem, const Geometry& geometry, const Waves& most,
            std::int64_t splits);

// The call of the kernels. longest: of its sequences. bounds: as long as the call.
Call call_of(const Problem& problem, const Tensors& arguments, const Geometry& geometry, const Waves& waves,
             const Longest& longest, const Memory& memory, const Mods& mods, const std::optional<MaskBounds>& bounds);

// Wave after wave of the K/V heads of some batch entries: pack(task, key_lo, key_hi) of every block of keys where keys
// are packed, then attend(task, worker) of every block of rows and split of the keys.
template <class Pack, class Attend>
void each_wave(const Call& call, const Waves& waves, const std::vector<std::int64_t>& entries, Executor& executor,
               const Pack& pack, const Attend& attend) {
  const Problem& p = call.problem;
  const Geometry& g = call.geometry;
  const std::int64_t heads = static_cast<std::int64_t>(entries.size()) * p.heads_kv,
                     block_rows = std::int64_t{waves.panels} * g.panel();
  const bool last_rows_see_most = p.band.causal || p.band.right >= 0;
  for (std::int64_t first = 0; first < heads; first += waves.slots) {
    const std::int64_t slots = std::min(waves.slots, heads - first);
    const auto task_of = [&](std::int64_t slot) {
      const std::int64_t batch = entries[static_cast<std::size_t>((first + slot) / p.heads_kv)];
      return Task{sequence_of(p, call.arguments, batch), batch, (first + slot) % p.heads_kv, slot, 0, 0, 0};
    };
    if (waves.v == Source::packed) {
      // Heads inside, keys outside: the heads of a [batch, seq, heads, dim] token share its pages.
      parallel(executor, slots * ceil_div(call.seq_k, g.block), [&](std::int64_t t, int) {
        const Task task = task_of(t % slots);
        const std::int64_t lo = t / slots * g.block, hi = std::min(lo + g.block, task.seq.seq_k);
        if (lo < hi && shown_of(call, task, 0, task.seq.seq_q * p.group(), lo, hi) != Tile::skip) pack(task, lo, hi);
      });
    }
    parallel(executor, slots * waves.row_blocks * waves.splits.count, [&](std::int64_t t, int worker) {
      Task task = task_of(t / (waves.row_blocks * waves.splits.count));
      const std::int64_t order = t / waves.splits.count % waves.row_blocks;
      const std::int64_t block = last_rows_see_most ? waves.row_blocks - 1 - order : order;
      task.row_lo = block * block_rows;
      task.row_hi = std::min(task.row_lo + block_rows, task.seq.seq_q * p.group());
      task.split = t % waves.splits.count;
      if (task.row_lo < task.row_hi) attend(task, worker);
    });
  }
}

}  // namespace onepass::cpu::flash
