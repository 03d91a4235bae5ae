// Waves of K/V heads: pack the keys and values of some heads into tiles, then attend to them, with a bounded workspace.
#include "cpu/amx/amx.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "cpu/amx/e4m3.hpp"
#include "cpu/amx/rows.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/flush_to_zero.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/place.hpp"
#include "cpu/common/queries.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu::amx {
namespace {

// Packed keys and values of a wave stay below this, or hold one head. With 20 MiB, 16 heads of 4096 keys of 128 dims
// took two waves and 16 threads waited at the end of both: 11.9 ms instead of 10.6.
constexpr std::size_t kWaveBytes = std::size_t{48} << 20;
constexpr int kWaveHeads = 1024;
constexpr std::int64_t kHeadBytes = std::int64_t{8} << 30;  // of one head, packed: 16 M keys of d 128
constexpr std::int64_t kPackKeys = 512;                     // of a pack task
constexpr std::int64_t kEnoughTasks = 64;                   // fewer row blocks share a task if that leaves fewer tasks
// Row blocks share a task where a head's keys and values do not fit L2 (2 MiB) beside the rest: each comes from L3 once
// per task. Where they fit, one row block at a time leaves its output in L1: 4.0 ms instead of 4.3 (4096 keys of 64
// dims).
constexpr std::size_t kFitsL2 = std::size_t{5} << 18;

struct Head {
  std::int64_t batch = 0, head = 0;  // of K and V
  Sequence seq;
  std::uint16_t *k = nullptr, *v = nullptr;   // packed
  std::uint32_t* flags = nullptr;             // of v
  std::int64_t pack_end = 0, attend_end = 0;  // tasks of the wave up to and with this head
};

struct Shape {
  explicit Shape(const Problem& p)
      : depth_qk(round_up(p.dim_qk, 32)),
        depth_v(round_up(p.dim_v, 32)),
        group(p.group()),
        heads(p.batch * p.heads_kv) {}
  // Row blocks that share a task, for a call's row blocks and its longest sequence of keys.
  int blocks_per_task(std::int64_t blocks, std::int64_t longest_k) const {
    int n = bytes(longest_k) <= kFitsL2 ? 1 : kBlocks;
    while (n > 1 && blocks / n < kEnoughTasks) n /= 2;
    return n;
  }
  std::int64_t key_elements(std::int64_t keys) const { return round_up(keys, kGroup) * depth_qk; }
  std::int64_t value_elements(std::int64_t keys) const { return round_up(keys, kGroup) * depth_v; }
  std::int64_t groups(const Problem& p) const { return ceil_div(p.seq_k, kGroup) + 1; }  // of a row block
  std::int64_t flags(std::int64_t keys) const { return round_up(keys, kGroup) / kGroup * flag_words(depth_v); }
  std::size_t bytes(std::int64_t keys) const {
    return static_cast<std::size_t>(key_elements(keys) + value_elements(keys)) * 2;
  }
  // Heads [first, result) of a call make a wave.
  std::int64_t wave_end(const Problem& p, const Tensors& a, std::int64_t first) const {
    std::size_t used = 0;
    std::int64_t h = first;
    for (; h < heads && h - first < kWaveHeads; ++h) {
      used += bytes(sequence_of(p, a, h / p.heads_kv).seq_k);
      if (h > first && used > kWaveBytes) break;
    }
    return h;
  }
  // Keys that a wave packs at most, whatever the lengths of a call.
  std::int64_t wave_keys(const Problem& p) const {
    const std::int64_t longest = round_up(p.seq_k, kGroup),
                       fit = static_cast<std::int64_t>(kWaveBytes / bytes(kGroup)) * kGroup,
                       all = p.packed_k() ? p.heads_kv * (round_up(p.total_k, kGroup) + p.batch * kGroup)
                                          : heads * longest;
    return std::max(longest, std::min(fit, std::min(all, heads * longest)));
  }

  std::int64_t depth_qk, depth_v, group, heads;
};

struct Books {
  Head* heads;
  std::uint16_t* packed;
  std::uint32_t* flags;
  Scratch* scratch;  // [workers]
};

Books book(Workspace& w, const Problem& p, const Shape& shape, int workers) {
  const std::int64_t keys = shape.wave_keys(p);
  Books books{w.take<Head>(std::min<std::int64_t>(shape.heads, kWaveHeads)),
              w.take<std::uint16_t>(shape.key_elements(keys) + shape.value_elements(keys)),
              w.take<std::uint32_t>(shape.flags(keys)), w.take<Scratch>(workers)};
  for (int i = 0; i < workers; ++i) {
    const Scratch s{w.take<RowBlock>(kBlocks),
                    w.take<std::uint32_t>(kBlocks * shape.depth_qk / 2 * kRows),
                    w.take<float>(kBlocks * shape.depth_v * kRows),
                    {w.take<float>(kKeys * kRows), w.take<float>(kKeys * kRows)},
                    w.take<std::uint32_t>(kBlocks * shape.depth_v),
                    p.batch_invariant ? w.take<float>(kBlocks * shape.depth_v * kRows) : nullptr,
                    p.mask_mod.empty() ? nullptr : w.take<Tile>(kBlocks * shape.groups(p)),
                    book_mods(w, p)};
    if (books.scratch) books.scratch[i] = s;
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
  Executor& executor;
  const int blocks_per_task = of_call();

  void wave(std::int64_t first, std::int64_t end) {
    std::uint16_t* packed = books.packed;
    std::uint32_t* flags = books.flags;
    std::int64_t packs = 0, attends = 0;
    for (std::int64_t h = first; h < end; ++h) {
      const std::int64_t batch = h / p.heads_kv;
      Sequence seq = sequence_of(p, a, batch);
      if (!queries.holds(seq.seq_q)) seq.seq_q = seq.seq_k = 0;  // no tasks
      packs += ceil_div(seq.seq_k, kPackKeys);
      attends += tasks_of(seq);
      std::uint16_t* v = packed + shape.key_elements(seq.seq_k);
      books.heads[h - first] = {batch, h % p.heads_kv, seq, packed, v, flags, packs, attends};
      flags += shape.flags(seq.seq_k);
      packed = v + shape.value_elements(seq.seq_k);
    }
    const std::span<const Head> heads(books.heads, static_cast<std::size_t>(end - first));
    parallel(executor, packs, [&](std::int64_t task, int) {
      const Head& head = *std::upper_bound(heads.begin(), heads.end(), task,
                                           [](std::int64_t t, const Head& x) { return t < x.pack_end; });
      pack(head, (head.pack_end - 1 - task) * kPackKeys);
    });
    // Later rows of a causal head see more keys, so they come first.
    parallel(executor, attends, [&](std::int64_t task, int worker) {
      const Head& head = *std::upper_bound(heads.begin(), heads.end(), task,
                                           [](std::int64_t t, const Head& x) { return t < x.attend_end; });
      attend(head, (head.attend_end - 1 - task) * blocks_per_task * kRows, books.scratch[worker]);
    });
  }

 private:
  int of_call() const {
    std::int64_t blocks = 0, longest_k = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, a, b);
      if (!queries.holds(seq.seq_q)) continue;
      blocks += ceil_div(seq.seq_q * shape.group, kRows) * p.heads_kv;
      longest_k = std::max(longest_k, seq.seq_k);
    }
    return shape.blocks_per_task(blocks, longest_k);
  }
  std::int64_t tasks_of(const Sequence& seq) const {
    const std::int64_t rows = std::int64_t{blocks_per_task} * kRows;
    return ceil_div(seq.seq_q * shape.group, rows);
  }

  void pack(const Head& head, std::int64_t from) const {
    const std::int64_t end = std::min(from + kPackKeys, head.seq.seq_k);
    for (std::int64_t key = from, next; key < end; key = next) {
      next = mask ? std::min(key + kKeys, end) : end;
      if (mask && hides_all(head, key, next)) continue;
      pack_keys(kernels, p, a, head.seq, head.head, key, next - key,
                {head.k + key * shape.depth_qk, head.v + key * shape.depth_v,
                 head.flags + key / kGroup * flag_words(shape.depth_v)});
    }
  }
  // True if no row sees any of the keys [lo, hi).
  bool hides_all(const Head& head, std::int64_t lo, std::int64_t hi) const {
    const std::int64_t first = head.head * shape.group, last = first + shape.group - 1;
    return mask->classify({head.batch, head.batch, first, last, 0, head.seq.seq_q - 1, lo, hi - 1}) == Tile::skip;
  }

  void attend(const Head& head, std::int64_t first_row, const Scratch& scratch) const {
    const std::int64_t rows = head.seq.seq_q * shape.group;
    AttendTask task = attend_task(p, a, params, head.seq, head.head, scratch);
    task.k = head.k;
    task.v = head.v;
    task.flags = head.flags;
    for (; task.blocks < blocks_per_task && first_row + task.blocks * kRows < rows; ++task.blocks) {
      const std::int64_t row = first_row + task.blocks * kRows;
      RowBlock& block = scratch.blocks[task.blocks] = row_block(p, a, params, head.seq, head.batch, head.head, row);
      if (mask) look_at_mask(p, *mask, head.seq, head.head, row, block, scratch.shown + task.blocks * shape.groups(p));
    }
    {
      const FlushToZero mode;  // as the tiles do anyway
      kernels.attend(task);
    }
    finish_rows(p, a, params, head.seq, task);
  }
};

}  // namespace

std::string refuses(const Problem& p) {
  if (std::string why = why_elsewhere(p); !why.empty()) return why;
  if (!p.score_mod.empty()) return "does not support score_mod";
  if (p.drafts > 0) return "does not support tree";
  if (p.key_dtype() == DType::f8e4m3) {
    if (p.batch_invariant) return "does not support batch_invariant with fp8_e4m3";
    std::string why = refuses_e4m3(p);
    return why.empty() ? refuses(in_bf16(p)) : why;
  }
  if (std::string why = why_no_other_keys(p); !why.empty()) return why;
  if (p.dtype != DType::bf16)
    return text("requires q, k and v in bf16 (got ", name_of(p.dtype), "), because tiles multiply bf16");
  const std::int64_t most = kHeadBytes / (2 * (round_up(p.dim_qk, 32) + round_up(p.dim_v, 32)));
  if (p.seq_k > most)
    return text("seq_k must be at most ", most, " (got ", p.seq_k, "): the packed K and V take at most 8 GiB");
  return why_no_alibi(p, std::numeric_limits<std::int32_t>::max() - std::max(p.seq_q, p.seq_k));
}

namespace {

class State final : public PlanState, public OfQueries {
 public:
  State(const Request& request, const Kernels& kernels)
      : PlanState(request.problem), kernels_(kernels), shape_(*problem), mods_(request.mods) {
    Workspace count;
    book(count, *problem, shape_, request.workers);
    workspace_bytes = count.bytes();
  }
  std::string describe() const override {
    return text("tiles of 16 x 16 fp32, units of ", kRows, " rows x ", kKeys, " keys, ", most_blocks() * kRows,
                " rows per task, K and V packed per head");
  }
  void run(const Tensors& a, void* workspace, Executor& executor, void*) const override {
    Workspace memory(workspace);
    const std::optional<MaskBounds> mask = mask_bounds_of(*problem, a, *mods_);
    Run run{kernels_,
            *problem,
            a,
            shape_,
            book(memory, *problem, shape_, executor.workers()),
            score_params(*problem, a, mods_.get()),
            mask ? &*mask : nullptr,
            *this,
            executor};
    for (std::int64_t first = 0, end; first < shape_.heads; first = end) {
      end = shape_.wave_end(*problem, a, first);
      run.wave(first, end);
    }
  }

 private:
  // Row blocks that share a task where all sequences are as long as they may be.
  int most_blocks() const {
    const std::int64_t blocks = ceil_div(problem->seq_q * shape_.group, kRows);
    return shape_.blocks_per_task(shape_.heads * blocks, problem->seq_k);
  }

  const Kernels kernels_;
  const Shape shape_;
  const std::shared_ptr<const Mods> mods_;
};

}  // namespace

Decision plan(const Request& request, const Kernels& kernels) {
  if (std::string why = refuses(*request.problem); !why.empty()) return Decision::no(std::move(why));
  if (has_few_rows(*request.problem)) return plan_few_rows(request, kernels);
  if (request.problem->key_dtype() == DType::f8e4m3) {
    const auto problem = std::make_shared<const Problem>(in_bf16(*request.problem));
    return with_e4m3(request, plan({problem, request.mods, request.workers}, kernels));
  }
  return {{}, std::make_shared<State>(request, kernels)};
}

namespace {

Decision on_hardware(const Request& request) {
  if (std::string why = refuses(*request.problem); !why.empty()) return Decision::no(why);
  if (std::string why = missing_hardware(); !why.empty()) return Decision::no(why);
  return plan(request, hardware_kernels());
}

}  // namespace

std::span<const Implementation> implementations() {
  static const Implementation row{"cpu.amx.bf16", on_hardware};
  return {&row, 1};
}

std::span<const Implementation> one_result_implementations() {
  static const Implementation row{"cpu.amx.one_result", [](const Request& request) {
                                    if (!request.problem->batch_invariant)
                                      return Decision::no("requires batch_invariant");
                                    return on_hardware(request);
                                  }};
  return {&row, 1};
}

}  // namespace onepass::cpu::amx
