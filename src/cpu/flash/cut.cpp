#include "cpu/flash/cut.hpp"

#include <algorithm>
#include <cstdint>

#include "algebra/ceil_div.hpp"
#include "algebra/split.hpp"
#include "cpu/common/one_result.hpp"
#include "problem/attention/score.hpp"

namespace onepass::cpu::flash {
namespace {

constexpr std::int64_t kPackedBytes = std::int64_t{64} << 20;  // of K and V at a time
constexpr std::int64_t kWantTasks = 32;  // fewer panels per task until there are that many: K and V are in cache anyway
constexpr std::int64_t kFewTasks = 16;   // below, the keys are split as well
constexpr std::int64_t kInvariantRows = 64;  // of a K/V head, at most, for batch_invariant to cut the keys
constexpr std::int64_t kSplitKeys = 1024;  // at least, per split: writing and joining a partial costs about 3 % of that

int panels_of(const Problem& p, const Geometry& g, std::int64_t seq_q) {
  const std::int64_t heads = p.batch * p.heads_kv, panels = ceil_div(seq_q * p.group(), g.panel());
  int n = static_cast<int>(std::clamp<std::int64_t>(panels, 1, g.panels));
  while (n > 1 && heads * ceil_div(panels, n) < kWantTasks) n = (n + 1) / 2;
  return n;
}

// The tasks of a call whose sequences are as long as they may be.
std::int64_t most_tasks(const Problem& p, const Geometry& g) {
  const std::int64_t panels = ceil_div(p.seq_q * p.group(), g.panel());
  return p.batch * p.heads_kv * ceil_div(panels, panels_of(p, g, p.seq_q));
}

KeySplits splits_of(const Problem& p, const Geometry& g, std::int64_t seq_k) {
  // A task joins splits itself where there are many rows: a long prompt's partial results would grow with its keys.
  if (p.batch_invariant) return p.seq_q * p.group() <= kInvariantRows ? aligned_splits(seq_k) : KeySplits{1, seq_k};
  const std::int64_t tasks = most_tasks(p, g);
  KeySplits splits = tasks < kFewTasks ? split_keys(tasks, seq_k, g.block, kSplitKeys) : KeySplits{1, seq_k};
  if (has_lengths(p) && splits.count > 1) splits.granule = g.block;
  return splits;
}

std::int64_t row_bytes(const Problem& p) { return (p.dim_qk + p.dim_v) * static_cast<std::int64_t>(sizeof(float)); }

// The most that the slots of a wave hold, whatever the lengths of a call.
struct Room {
  std::int64_t keys = 0, blocks = 0;
};
Room room_of(const Problem& p, const Geometry& g, const Waves& w) {
  const std::int64_t heads = p.batch * p.heads_kv, blocks = ceil_div(p.seq_k, g.block);
  if (w.row_blocks <= 1) return {};
  if (!has_lengths(p)) return w.v == Source::packed ? Room{w.slots * p.seq_k, w.slots * blocks} : Room{};
  const std::int64_t keys = std::min(heads * p.seq_k, kPackedBytes / row_bytes(p));
  return {keys, std::min(heads * blocks, keys / g.block + heads)};
}

}  // namespace

std::int64_t splits_at_most(const Problem& p, const Geometry& g) {
  const std::int64_t count = splits_of(p, g, p.seq_k).count, tasks = std::max<std::int64_t>(1, most_tasks(p, g));
  if (!p.packed_k() || p.batch_invariant || tasks >= kFewTasks) return count;
  // Before chunks are rounded, which only makes them fewer.
  return std::min(ceil_div(kSplitTarget, tasks), std::max<std::int64_t>(1, p.seq_k / kSplitKeys));
}

Waves waves_of(const Problem& p, const Geometry& g, const Longest& n) {
  const std::int64_t heads = p.batch * p.heads_kv, panels = ceil_div(n.seq_q * p.group(), g.panel());
  Waves w;
  w.panels = panels_of(p, g, n.seq_q);
  w.splits = splits_of(p, g, p.packed_k() ? n.seq_k : p.seq_k);  // a cache is cut by its size, whatever the batch holds
  if (p.batch_invariant && w.splits.count == 1) w.join_every = aligned_splits(n.seq_k).chunk;
  w.row_blocks = ceil_div(panels, w.panels);
  const std::int64_t head_bytes = n.seq_k * row_bytes(p);
  // A block of keys is read in place where it is one run.
  const bool f32 = p.key_dtype() == DType::f32 && (!p.paged() || p.page_size % g.block == 0),
             pack = w.row_blocks > 1 && head_bytes <= kPackedBytes;
  // Rows far apart cost TLB misses and cache conflicts: 25 points of the peak at 8 KB. A task of one panel reads each
  // row once and gains nothing by copying it.
  const bool compact = f32 && p.layout.k[2] == p.dim_qk;
  w.k = w.v = pack ? Source::packed : f32 && panels <= 1 ? Source::in_place : Source::block;
  if (compact) w.k = Source::in_place;
  w.slots =
      pack ? std::min(heads, std::max<std::int64_t>(1, kPackedBytes / std::max<std::int64_t>(head_bytes, 1))) : heads;
  return w;
}

Memory book(Workspace& w, const Problem& p, const Geometry& g, const Waves& most, std::int64_t splits) {
  const Room room = room_of(p, g, most);
  Memory m;
  if (most.k != Source::in_place) m.packed_k = w.take<float>(room.keys * p.dim_qk);
  m.packed_v = w.take<float>(room.keys * p.dim_v);
  m.packed_finite = w.take<std::uint8_t>(room.blocks);
  m.packed_flags = w.take<std::uint32_t>(room.blocks * g.flag_words() * p.dim_v);
  if (splits > 1) m.partials = book_partials(w, p, splits);
  return m;
}

Call call_of(const Problem& p, const Tensors& a, const Geometry& g, const Waves& waves, const Longest& longest,
             const Memory& m, const Mods& mods, const std::optional<MaskBounds>& bounds) {
  return {.problem = p,
          .arguments = a,
          .geometry = g,
          .k_source = waves.k,
          .v_source = waves.v,
          .panels = waves.panels,
          .splits = waves.splits,
          .partials = m.partials,
          .seq_k = longest.seq_k,
          .packed_k = m.packed_k,
          .packed_v = m.packed_v,
          .packed_finite = m.packed_finite,
          .packed_flags = m.packed_flags,
          .dropout = dropout_of(p, a),
          .mods = mods,
          .join_every = waves.join_every,
          .mask_bounds = bounds ? &*bounds : nullptr};
}

}  // namespace onepass::cpu::flash
