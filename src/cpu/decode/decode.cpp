// The host's half of the few-row kernels: what they accept and how a problem is cut. The kernels: decode-inl.h.
#include "cpu/decode/decode.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "cpu/common/call_memory.hpp"
#include "cpu/common/flush_to_zero.hpp"
#include "cpu/common/mask_bounds.hpp"
#include "cpu/common/one_result.hpp"
#include "cpu/common/place.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kChunk = 32;
constexpr std::int64_t kTileBytes = 4 << 10;        // of one head, read in the order of memory
constexpr std::int64_t kLeadBytes = 8 << 10;        // fetched ahead; 4 KB and 16 KB are 5 to 15 % slower
constexpr std::int64_t kHeadStateBytes = 64 << 10;  // q and O of the heads of a task, when they take turns
// Rows 4 KB apart share the sets of an L1 cache: 4 ways for K, 4 for V, the rest for everything else.
constexpr std::int64_t kAliasBytes = 16 << 10;

// Keys visible to any row, at most: what a window leaves of seq_k.
std::int64_t longest_span(const Problem& p, const Longest& n) {
  const Range all = band_mask(p, n.seq_q, n.seq_k).key_range(0, n.seq_q);
  if (!has_lengths(p)) return std::max<std::int64_t>(0, all.hi - all.lo);
  const std::int64_t right = p.band.causal ? 0 : p.band.right;
  return p.band.left < 0 || right < 0 ? n.seq_k : std::min(n.seq_k, p.band.left + right + n.seq_q);
}

// q holds the scale but for one result per row, whose scores have the unit of cpu.flash; unified_max is natural.
ScoreUnit decode_unit(const Problem& p) { return p.batch_invariant && !p.unified_max ? score_unit_of(p) : ScoreUnit{}; }

// Keys that one vector of scores holds at most: tiles are whole vectors for every row group and instruction set.
std::int64_t keys_per_vector(const Problem& p, std::int64_t seq_q) {
  const std::int64_t rest = p.varlen && seq_q > 1 ? 1 : seq_q * p.group() % 4;
  return rest == 1 || rest == 2 ? kDecodeMaxLanes / rest : kDecodeMaxLanes / 4;
}

}  // namespace

DecodeCut decode_cut(const Problem& p, const Longest& n) {
  DecodeCut cut;
  cut.rows = n.seq_q * p.group();
  cut.keys_outer = p.heads_kv > 1 && std::abs(p.layout.k[1]) < std::abs(p.layout.k[2]);
  if (cut.keys_outer) {
    const std::int64_t state = 4 * cut.rows * (p.dim_qk + p.dim_v);
    cut.heads = std::clamp<std::int64_t>(kHeadStateBytes / std::max<std::int64_t>(1, state), 1, p.heads_kv);
  }
  cut.head_blocks = ceil_div(p.heads_kv, cut.heads);
  cut.one_result = p.batch_invariant;
  cut.chunk = cut.one_result ? kBlockKeys : kChunk;
  const auto size = static_cast<std::int64_t>(size_of(p.key_dtype()));
  const std::int64_t row = size * std::max(p.dim_qk, p.dim_v),
                     apart = size * std::max(std::abs(p.layout.k[2]), p.dim_qk);
  // Keys are lanes for one result per row: two vectors of them are enough products in flight.
  const std::int64_t unit = cut.one_result ? 2 * kDecodeMaxLanes : keys_per_vector(p, n.seq_q);
  cut.tile = std::clamp(std::min(kTileBytes / row, kAliasBytes / apart) / unit * unit, unit, kChunk);
  while (cut.chunk % cut.tile != 0) cut.tile -= unit;
  cut.lead = std::clamp<std::int64_t>(kLeadBytes / (row * cut.tile), 1, 8);
  const std::int64_t span = longest_span(p, n);
  cut.splits = p.batch_invariant ? aligned_splits(n.seq_k) : split_keys(p.batch * cut.head_blocks, span, cut.chunk);
  // A window that begins anywhere touches one split more than it fills.
  if (p.batch_invariant) cut.splits.count = std::min(cut.splits.count, aligned_splits(span).count + 1);
  if (has_lengths(p) && !p.batch_invariant) cut.splits.granule = cut.chunk;
  return cut;
}

DecodeScratch book_decode(Workspace& w, const Problem& p, const DecodeCut& cut) {
  DecodeScratch s;
  s.padded_rows = in_groups(cut.rows);
  s.dim_qk = round_up(p.dim_qk, 2 * kDecodeMaxLanes);
  s.dim_v = round_up(p.dim_v, 2 * kDecodeMaxLanes);
  s.q = w.take<float>(cut.heads * s.padded_rows * s.dim_qk);
  s.o = w.take<float>(cut.heads * s.padded_rows * s.dim_v);
  s.m = w.take<float>(cut.heads * s.padded_rows * kDecodeMaxLanes);
  s.l = w.take<float>(cut.heads * s.padded_rows * kDecodeMaxLanes);
  s.t = p.entropy ? w.take<float>(cut.heads * s.padded_rows * kDecodeMaxLanes) : nullptr;
  s.scores = w.take<float>(cut.heads * s.padded_rows * cut.chunk);
  s.alpha = w.take<float>(cut.heads * s.padded_rows * kDecodeMaxLanes);
  s.extra = w.take<float>(cut.chunk * 4);
  s.visible = w.take<float>(cut.heads * s.padded_rows * cut.chunk);
  s.lost = w.take<float>(cut.heads * s.padded_rows * s.dim_v);
  s.left = p.unified_max ? w.take<float>(cut.heads * s.padded_rows) : nullptr;
  s.packed = w.take<float>(cut.tile * std::max(s.dim_qk, s.dim_v));
  s.turned = cut.one_result ? w.take<float>(cut.tile * s.dim_qk) : nullptr;
  s.sums = cut.one_result ? w.take<float>(cut.heads * s.padded_rows * s.dim_v) : nullptr;
  s.tiles = p.mask_mod.empty() ? nullptr : w.take<Tile>(cut.heads * chunks_at_most(p, cut));
  s.mods = book_mods(w, p);
  return s;
}

namespace {

// Everything a call needs besides its arguments, from one place for counting and for running.
struct Booked {
  DecodeScratch* scratch;
  Partials partials;
};
Booked book(Workspace& w, const Problem& p, const DecodeCut& cut, int workers) {
  Booked b{w.take<DecodeScratch>(workers), {}};
  for (int i = 0; i < workers; ++i) {
    const DecodeScratch s = book_decode(w, p, cut);
    if (b.scratch) b.scratch[i] = s;
  }
  if (cut.splits.count > 1) b.partials = book_partials(w, p, cut.splits.count);
  return b;
}

// The bytes of any call within the bounds.
std::size_t most_bytes(const Problem& p, int workers) {
  std::size_t most = 0;
  for (std::int64_t seq_q = p.varlen ? 0 : p.seq_q; seq_q <= p.seq_q; ++seq_q) {
    const Longest n{seq_q, p.seq_k};
    DecodeCut cut = decode_cut(p, n);
    const std::int64_t tasks = std::max<std::int64_t>(1, p.batch * cut.head_blocks);
    if (p.varlen && !p.batch_invariant)  // before chunks are rounded, which only makes them fewer
      cut.splits.count =
          std::min(ceil_div(kSplitTarget, tasks), std::max<std::int64_t>(1, longest_span(p, n) / kSplitMinKeys));
    Workspace counting;
    book(counting, p, cut, workers);
    most = std::max(most, counting.bytes());
  }
  return most;
}

class State final : public PlanState, public OfQueries {
 public:
  State(const Request& request, DecodeTask task)
      : PlanState(request.problem),
        cut_(decode_cut(*problem, {problem->seq_q, problem->seq_k})),
        mods_(request.mods),
        task_(task) {
    workspace_bytes = most_bytes(*problem, request.workers);
  }

  std::string describe() const override {
    return text(cut_.rows, " rows per K/V head, chunks of ", cut_.chunk, " keys in tiles of ", cut_.tile, ", ",
                cut_.keys_outer ? text("loops over keys, then ", cut_.heads, " heads")
                                : std::string("loops over heads, then keys"),
                ", ", cut_.splits.count, cut_.splits.count == 1 ? " split" : " splits", " of ", cut_.splits.chunk,
                " keys, ", cut_.tasks(problem->batch), " tasks");
  }

  void run(const Tensors& a, void* workspace, Executor& executor, void*) const override {
    Workspace w(workspace);
    const std::vector<std::int64_t> entries = entries_of(*problem, a, *this);
    const DecodeCut cut = cut_of(a, entries);
    const Booked b = book(w, *problem, cut, executor.workers());
    const ScoreUnit unit = decode_unit(*problem);
    const std::optional<MaskBounds> bounds = mask_bounds_of(*problem, a, *mods_);
    const DecodeJob job{*problem,   a,         cut,
                        b.partials, b.scratch, score_params(*problem, a, mods_.get()),
                        unit,       entries,   bounds ? &*bounds : nullptr};
    parallel(executor, cut.tasks(static_cast<std::int64_t>(entries.size())), [&](std::int64_t t, int worker) {
      const FlushToZero mode;
      task_(job, t, worker);
    });
    if (cut.splits.count > 1) combine(*problem, a, b.partials, unit, entries, executor);
  }

 private:
  // A cache is cut by its size, whatever the batch holds.
  DecodeCut cut_of(const Tensors& a, const std::vector<std::int64_t>& entries) const {
    if (!problem->varlen) return cut_;
    const Longest n = longest_of(*problem, a, entries);
    return decode_cut(*problem, {n.seq_q, problem->packed_k() ? n.seq_k : problem->seq_k});
  }

  const DecodeCut cut_;  // of a call whose sequences are as long as they may be
  const std::shared_ptr<const Mods> mods_;
  const DecodeTask task_;
};

}  // namespace

Decision plan_decode(const Request& request, std::int64_t target, DecodeTask task) {
  const Problem& p = *request.problem;
  if (std::string why = why_elsewhere(p, target); !why.empty()) return Decision::no(why);
  const std::int64_t rows = p.seq_q * p.group();
  if (rows > kDecodeMaxRows) {
    return Decision::no(
        text("supports at most ", kDecodeMaxRows, " rows (seq_q x heads_q / heads_kv) per K/V head (got ", rows, ")"));
  }
  // As cpu.flash, whose bits a row then has.
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (std::string why = why_no_alibi(p, kMax - std::max(p.seq_q, p.seq_k)); p.batch_invariant && !why.empty())
    return Decision::no(why);
  return {{}, std::make_shared<State>(request, task)};
}

}  // namespace onepass::cpu
