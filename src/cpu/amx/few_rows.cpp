// Few rows of a head with batch_invariant: the keys of a split are packed where a core's L2 holds them, and multiplied
// at once. A split's state waits until the others are there; they are joined as a long prompt's task joins them.
#include <algorithm>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/amx/amx.hpp"
#include "cpu/amx/rows.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/flush_to_zero.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/queries.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu::amx {
namespace {

constexpr std::int64_t kFewBlocks = 2;  // row blocks of a head
constexpr std::int64_t kSplitGroups = kJoinKeys / kGroup;
constexpr std::int64_t kManyHeads = 64;  // K/V heads of all sequences: a task then computes all splits of one

struct Shape {
  explicit Shape(const Problem& p)
      : depth_qk(round_up(p.dim_qk, 32)),
        depth_v(round_up(p.dim_v, 32)),
        blocks(ceil_div(p.seq_q * p.group(), kRows)),
        splits(std::max<std::int64_t>(1, ceil_div(p.seq_k, kJoinKeys))),
        heads(p.batch * p.heads_kv),
        apart(heads < kManyHeads && splits > 1) {}
  std::int64_t states() const { return blocks * splits; }  // of a head

  std::int64_t depth_qk, depth_v, blocks, splits, heads;
  bool apart;  // splits are tasks
};

struct Books {
  SplitState* states;  // [heads, or workers][blocks][splits]
  PackedKeys* packed;  // [workers]
  Scratch* scratch;
};

Books book(Workspace& w, const Problem& p, const Shape& s, int workers) {
  const std::int64_t states = (s.apart ? s.heads : workers) * s.states(), rows = s.blocks * kRows;
  Books books{w.take<SplitState>(states), w.take<PackedKeys>(workers), w.take<Scratch>(workers)};
  for (std::int64_t i = 0; i < states; ++i) {
    const SplitState state{false,
                           false,
                           w.take<float>(kRows),
                           w.take<float>(kRows),
                           w.take<float>(kRows),
                           w.take<float>(kRows),
                           w.take<float>(s.depth_v * kRows),
                           w.take<std::uint32_t>(s.depth_v)};
    if (books.states) books.states[i] = state;
  }
  for (int i = 0; i < workers; ++i) {
    const PackedKeys packed{w.take<std::uint16_t>(kJoinKeys * s.depth_qk), w.take<std::uint16_t>(kJoinKeys * s.depth_v),
                            w.take<std::uint32_t>(kJoinKeys / kGroup * flag_words(s.depth_v))};
    const Scratch scratch{w.take<RowBlock>(s.blocks),
                          w.take<std::uint32_t>(s.depth_qk / 2 * rows),
                          w.take<float>(s.depth_v * rows),
                          {w.take<float>(kKeys * kRows), w.take<float>(kKeys * kRows)},
                          w.take<std::uint32_t>(s.blocks * s.depth_v),
                          w.take<float>(s.depth_v * rows),
                          p.mask_mod.empty() ? nullptr : w.take<Tile>(s.blocks * kSplitGroups),
                          book_mods(w, p)};
    if (books.packed) books.packed[i] = packed, books.scratch[i] = scratch;
  }
  return books;
}

struct Run {
  const Kernels& kernels;
  const Problem& p;
  const Tensors& a;
  const Shape shape;
  const Books books;
  const ScoreParams params;
  const MaskBounds* mask;  // null: no mask_mod
  const OfQueries& queries;

  // The states of a head's rows over one split.
  void attend(std::int64_t h, std::int64_t split, SplitState* states, int worker) const {
    const Sequence seq = sequence_of(p, a, h / p.heads_kv);
    if (!queries.holds(seq.seq_q)) return;
    const Scratch& scratch = books.scratch[worker];
    AttendTask task = attend_task(p, a, params, seq, h % p.heads_kv, scratch);
    task.blocks = static_cast<int>(ceil_div(seq.seq_q * p.group(), kRows));
    const std::int64_t lo = split * kJoinKeys, hi = std::min(lo + kJoinKeys, seq.seq_k);
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    SplitState to[kFewBlocks];
    for (int b = 0; b < task.blocks; ++b) {
      RowBlock& block = scratch.blocks[b] = row_block(p, a, params, seq, seq.batch, task.kv_head, b * kRows);
      block.first = std::max(block.first, lo), block.last = std::min(block.last, hi);
      if (mask) look_at_mask(p, *mask, seq, task.kv_head, b * kRows, block, scratch.shown + b * kSplitGroups);
      if (block.first < block.last) first = std::min(first, block.first), last = std::max(last, block.last);
      to[b] = states[b * shape.splits + split];
      to[b].seen = false;
    }
    if (first < last) {
      const PackedKeys& packed = books.packed[worker];
      task.first_key = first / kGroup * kGroup;
      pack(task, seq, last, packed);
      task.k = packed.k, task.v = packed.v, task.flags = packed.flags;
      task.splits = to;
      const FlushToZero mode;
      kernels.attend(task);
    }
    for (int b = 0; b < task.blocks; ++b) states[b * shape.splits + split] = to[b];
  }

  // The keys [task.first_key, last), but no block of a unit's keys that no row sees.
  void pack(const AttendTask& task, const Sequence& seq, std::int64_t last, const PackedKeys& to) const {
    for (std::int64_t key = task.first_key, next; key < last; key = next) {
      next = mask ? std::min(key / kKeys * kKeys + kKeys, last) : last;
      if (mask && !shows_any(task, key, next)) continue;
      const std::int64_t at = key - task.first_key;
      pack_keys(
          kernels, p, a, seq, task.kv_head, key, next - key,
          {to.k + at * shape.depth_qk, to.v + at * shape.depth_v, to.flags + at / kGroup * flag_words(shape.depth_v)});
    }
  }

  static bool shows_any(const AttendTask& task, std::int64_t lo, std::int64_t hi) {
    for (int b = 0; b < task.blocks; ++b) {
      const RowBlock& block = task.scratch.blocks[b];
      for (std::int64_t key = std::max(lo, block.first); key < std::min(hi, block.last); key += kGroup - key % kGroup)
        if (block.shown[(key - block.shown_from) / kGroup] != Tile::skip) return true;
    }
    return false;
  }

  void finish(std::int64_t h, std::int64_t b, const SplitState* states, int worker) const {
    const Sequence seq = sequence_of(p, a, h / p.heads_kv);
    if (b * kRows >= seq.seq_q * p.group() || !queries.holds(seq.seq_q)) return;
    AttendTask task = attend_task(p, a, params, seq, h % p.heads_kv, books.scratch[worker]);
    task.blocks = 1;
    task.scratch.blocks[0] = row_block(p, a, params, seq, seq.batch, task.kv_head, b * kRows);
    {
      const FlushToZero mode;
      kernels.finish(task, states + b * shape.splits, static_cast<int>(shape.splits));
    }
    finish_rows(p, a, params, seq, task);
  }
};

class State final : public PlanState, public OfQueries {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem), kernels_(kernels), shape_(*problem), mods_(request.mods) {
    Workspace count;
    book(count, *problem, shape_, request.workers);
    workspace_bytes = count.bytes();
  }
  std::string describe() const override {
    return text("tiles of 16 x 16 fp32, units of ", kRows, " rows x ", kKeys, " keys, ", shape_.splits,
                shape_.splits == 1 ? " split" : " splits", " of ", kJoinKeys, " keys, packed in L2, ",
                shape_.heads * (shape_.apart ? shape_.splits : 1), " tasks");
  }
  void run(const Tensors& a, void* workspace, Executor& executor, void*) const override {
    Workspace memory(workspace);
    const std::optional<MaskBounds> mask = mask_bounds_of(*problem, a, *mods_);
    const Run run{kernels_,
                  *problem,
                  a,
                  shape_,
                  book(memory, *problem, shape_, executor.workers()),
                  score_params(*problem, a, mods_.get()),
                  mask ? &*mask : nullptr,
                  *this};
    const auto states = [&](std::int64_t owner) { return run.books.states + owner * shape_.states(); };
    if (!shape_.apart) {
      parallel(executor, shape_.heads, [&](std::int64_t h, int worker) {
        for (std::int64_t i = 0; i < shape_.splits; ++i) run.attend(h, i, states(worker), worker);
        for (std::int64_t b = 0; b < shape_.blocks; ++b) run.finish(h, b, states(worker), worker);
      });
      return;
    }
    parallel(executor, shape_.heads * shape_.splits, [&](std::int64_t t, int worker) {
      run.attend(t / shape_.splits, t % shape_.splits, states(t / shape_.splits), worker);
    });
    parallel(executor, shape_.heads * shape_.blocks, [&](std::int64_t t, int worker) {
      run.finish(t / shape_.blocks, t % shape_.blocks, states(t / shape_.blocks), worker);
    });
  }

 private:
  const Kernels kernels_;
  const Shape shape_;
  const std::shared_ptr<const Mods> mods_;
};

}  // namespace

bool has_few_rows(const Problem& p) {
  return p.batch_invariant && p.seq_q * p.group() <= kFewBlocks * kRows && p.seq_q > 0;
}

Decision plan_few_rows(const Request& request, const Kernels& kernels) {
  return {{}, std::make_shared<State>(request, kernels)};
}

}  // namespace onepass::cpu::amx
