#include "cpu/backward/cut.hpp"

#include <algorithm>
#include <cmath>

#include "algebra/ceil_div.hpp"
#include "algebra/split.hpp"

namespace onepass::cpu::backward {
namespace {

constexpr std::int64_t kSplitKeys = 256;                      // at least, per split
constexpr std::int64_t kSplitRows = 256;                      // the same of rows
constexpr std::int64_t kPartBytes = std::int64_t{256} << 20;  // of the parts of dQ, or of dK and dV, at most
// The bytes of a row block: five panels a row (Q and dO both ways, dQ), beside a block of K, V, dK and dV in 1 MiB of
// L2.
constexpr std::int64_t kPanelBytes = std::int64_t{512} << 10;

std::int64_t most_parts(std::int64_t numbers) {
  return std::max<std::int64_t>(
      1, kPartBytes / std::max<std::int64_t>(1, numbers * static_cast<std::int64_t>(sizeof(float))));
}

BiasSums bias_sums(const Problem& p) {
  if (!p.gradients.dbias) return BiasSums::none;
  const BroadcastDims& spans = p.bias->spans;
  return spans.rows && spans.keys ? BiasSums::in_place : spans.keys ? BiasSums::by_key : BiasSums::by_row;
}

}  // namespace

Plan plan_of(const Problem& p, const flash::Geometry& g, const Longest& longest, const Cut* most) {
  Plan plan;
  plan.longest = longest;
  Cut& c = plan.cut;
  plan.bias = bias_sums(p);
  if (plan.bias == BiasSums::in_place)
    plan.phases =
        std::max<std::int64_t>(1, (p.bias->spans.batch ? 1 : p.batch) * (p.bias->spans.heads ? 1 : p.heads_kv));

  const std::int64_t panel = g.panel(), rows = longest.seq_q * p.group();
  const std::int64_t columns = 2 * p.dim_qk + p.dim_v + (ceil_div(p.dim_qk, panel) + ceil_div(p.dim_v, panel)) * panel;
  const std::int64_t panel_bytes =
      std::max<std::int64_t>(1, columns * panel * static_cast<std::int64_t>(sizeof(float)));
  c.panels = static_cast<int>(std::clamp<std::int64_t>(kPanelBytes / panel_bytes, 1, g.panels));
  c.panels = static_cast<int>(std::clamp<std::int64_t>(ceil_div(rows, panel), 1, c.panels));

  // A split of the keys packs the rows once more and leaves a part of dQ; a split of the rows leaves parts of dK and
  // dV. Splitting both costs the least: 64 tasks of one head are 8 x 8.
  const std::int64_t heads = std::max<std::int64_t>(1, plan.heads_at_once(p)), block = c.panels * panel;
  const std::int64_t want = ceil_div(kSplitTarget, heads),
                     most_keys = most ? most->key_splits : most_parts(rows_of(p) * p.dim_qk),
                     most_rows = most ? most->row_splits : most_parts(key_rows_of(p) * (p.dim_qk + p.dim_v));
  const auto cut_keys = [&](std::int64_t n) {
    return split_into(std::min(n, most_keys), longest.seq_k, g.block, kSplitKeys);
  };
  KeySplits by_keys = cut_keys(static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(want)))));
  const KeySplits by_rows = split_into(std::min(ceil_div(want, by_keys.count), most_rows), rows, block, kSplitRows);
  if (by_keys.count * by_rows.count < want) by_keys = cut_keys(ceil_div(want, by_rows.count));
  if (most && by_keys.chunk > most->key_chunk) by_keys = cut_keys(most->key_splits);
  c.key_splits = by_keys.count;
  c.key_chunk = by_keys.chunk;
  c.row_splits = by_rows.count;
  c.row_chunk = by_rows.chunk;

  const bool f32 = p.dtype == DType::f32;
  if (f32 && p.layout.k[2] == p.dim_qk) plan.k = flash::Source::in_place;
  if (f32 && p.layout.v[2] == p.dim_v) plan.v = flash::Source::in_place;
  return plan;
}

// Keys that do not fill two splits are one chunk, which may be longer than those of more keys.
Cut booked_cut(const Problem& p, const flash::Geometry& g, const Cut& most) {
  Cut cut = most;
  if (!p.varlen) return cut;
  const std::int64_t one = std::min(p.seq_k, 2 * kSplitKeys - 1);
  cut.key_chunk = std::max(cut.key_chunk, ceil_div(one, g.block) * g.block);
  return cut;
}

Task task_of(const Problem& p, const Plan& plan, std::int64_t phase, std::int64_t t) {
  const Cut& c = plan.cut;
  const std::int64_t heads = plan.heads_at_once(p);
  Task task{};
  task.key_split = t / (heads * c.row_splits);                   // causal: the first keys have the most rows
  task.row_split = c.row_splits - 1 - t / heads % c.row_splits;  // and the last rows the most keys
  const std::int64_t group = t % heads;
  const std::int64_t turn = (phase + task.key_split * c.row_splits + task.row_split) % plan.phases;
  if (plan.phases == 1) {
    task.batch = group / p.heads_kv;
    task.head_kv = group % p.heads_kv;
  } else if (p.bias->spans.batch) {  // the heads of a batch entry take turns
    task.batch = group;
    task.head_kv = turn;
  } else if (p.bias->spans.heads) {
    task.batch = turn;
    task.head_kv = group;
  } else {
    task.batch = turn / p.heads_kv;
    task.head_kv = turn % p.heads_kv;
  }
  return task;
}

void fit(const Problem& p, const Cut& c, Task& task) {
  const std::int64_t rows = task.seq.seq_q * p.group(), keys = task.seq.seq_k;
  task.row_lo = std::min(task.row_split * c.row_chunk, rows);
  task.row_hi = std::min(task.row_lo + c.row_chunk, rows);
  task.key_lo = std::min(task.key_split * c.key_chunk, keys);
  task.key_hi = std::min(task.key_lo + c.key_chunk, keys);
}

std::int64_t rows_of(const Problem& p) { return p.heads_q * (p.varlen ? p.total_q : p.batch * p.seq_q); }
std::int64_t key_rows_of(const Problem& p) { return p.heads_kv * (p.varlen ? p.total_k : p.batch * p.seq_k); }
std::int64_t key_row(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t key) {
  return p.varlen ? head * p.total_k + s.k_begin + key : (s.batch * p.heads_kv + head) * p.seq_k + key;
}

}  // namespace onepass::cpu::backward
