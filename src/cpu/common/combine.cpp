#include "cpu/common/queries.hpp"

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "algebra/entropy.hpp"
#include "algebra/nonfinite.hpp"
#include "algebra/numerics.hpp"
#include "base/parallel.hpp"
#include "cpu/common/flush_to_zero.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 16;
// Joins (state, sum) with the splits in order. nonfinite: as a fallback, so that an infinity stays one where it lies in
// a split that weighs nothing (a share of 2^-150 = 0).
template <bool nonfinite>
RowState<float> join(const RowState<float>* states, const float* out, std::int64_t splits, std::int64_t dim,
                     float to_log2, float* sum) {
  const auto scaled = [](float share, float x) { return (nonfinite ? visible_weight(share, x) : share) * x; };
  RowState<float> all;
  std::fill_n(sum, dim, 0.0f);
  for (std::int64_t i = 0; i < splits; ++i) {
    if (states[i].l == 0) continue;  // of no visible key; its O is not read
    const Merged<float> joined = join_split(all, states[i], to_log2);
    const float* o = out + i * dim;
    for (std::int64_t d = 0; d < dim; ++d) sum[d] = scaled(joined.alpha_a, sum[d]) + scaled(joined.alpha_b, o[d]);
    all = joined.state;
  }
  return all;
}

float join_entropies(const RowState<float>* states, const float* entropies, std::int64_t splits, float to_log2) {
  RowState<float> all;
  float sum = 0;
  for (std::int64_t i = 0; i < splits; ++i) {
    if (states[i].l == 0) continue;
    const Merged<float> joined = join_split(all, states[i], to_log2);
    sum = joined_entropy(sum, all.l, entropies[i], states[i].l, joined);
    all = joined.state;
  }
  return sum;
}

bool all_finite(const float* x, std::int64_t count) {
  float probe = 0;
  for (std::int64_t i = 0; i < count; ++i) probe = probe_finite(probe, x[i]);
  return probe == 0;
}

template <class T>
void store_row(const float* from, std::int64_t dim, void* base, std::int64_t at) {
  T* to = static_cast<T*>(base) + at;
  for (std::int64_t d = 0; d < dim; ++d) to[d] = from_float<T>(from[d]);
}

}  // namespace

namespace {

// How rows of packed calls are counted: the few rows of a mixed call are fewer than its tokens.
bool by_total(const Problem& p) { return p.varlen && p.total_q <= p.batch * p.seq_q; }

}  // namespace

Merged<float> join_split(const RowState<float>& earlier, const RowState<float>& next, float to_log2) {
  return merge(earlier, next, to_log2);
}

float finished_entropy(const Problem& p, const RowState<float>& keys, float entropy, float sink) {
  if (p.sinks) entropy = joined_entropy(entropy, keys.l, 0.0f, 1.0f, join_natural_sink(keys, sink));
  return entropy < 0 ? 0 : entropy;  // by rounding; NaN is kept
}

std::int64_t partial_row(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t token) {
  return by_total(p) ? head * p.total_q + s.q_begin + token : (s.batch * p.heads_q + head) * p.seq_q + token;
}

Partials book_partials(Workspace& workspace, const Problem& p, std::int64_t splits) {
  const std::int64_t rows = p.heads_q * (by_total(p) ? p.total_q : p.batch * p.seq_q);
  Partials partials{splits, p.dim_v};
  partials.state = workspace.take<RowState<float>>(rows * splits);
  partials.out = workspace.take<float>(rows * splits * p.dim_v);
  if (p.entropy) partials.entropy = workspace.take<float>(rows * splits);
  if (p.want_row_max && p.unified_max) partials.most = workspace.take<float>(rows * splits);
  return partials;
}

void finalize_row(const Problem& p, const Tensors& a, const Sequence& seq, std::int64_t head, std::int64_t token,
                  const RowState<float>* states, const float* out, std::int64_t splits, const ScoreUnit& unit,
                  const float* most, const float* entropies) {
  float sum[kMostValueDims];
  RowState<float> all = join<false>(states, out, splits, p.dim_v, unit.to_log2, sum);
  const bool finite = all_finite(sum, p.dim_v);
  if (!finite && !p.batch_invariant) all = join<true>(states, out, splits, p.dim_v, unit.to_log2, sum);
  const RowState<float> of_keys{most ? *std::max_element(most, most + splits) : all.m, all.l};
  all = to_natural(all, unit.to_log2, unit.to_natural);
  const float sink = p.sinks ? static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]] : 0.0f;
  const std::int64_t row = seq.q_begin + token;
  if (p.entropy)
    static_cast<float*>(a.entropy.data)[lse_offset(a.entropy, seq.batch, head, row)] =
        finished_entropy(p, all, join_entropies(states, entropies, splits, unit.to_log2), sink);
  if (p.sinks) {
    const Merged<float> joined = join_natural_sink(all, sink);
    const float alpha = joined.alpha_a;
    if (finite) {
      for (std::int64_t d = 0; d < p.dim_v; ++d) sum[d] *= alpha;
    } else {
      for (std::int64_t d = 0; d < p.dim_v; ++d) sum[d] *= visible_weight(alpha, sum[d]);
    }
    all = joined.state;
  }
  for (std::int64_t d = 0; d < p.dim_v; ++d) sum[d] = normalize(sum[d], all);
  if (p.want_recomputed) {  // a state that unified_max served refers to it
    const bool left = std::any_of(states, states + splits,
                                  [&](const RowState<float>& s) { return s.l != 0 && s.m != *p.unified_max; });
    static_cast<std::int32_t*>(a.recomputed.data)[lse_offset(a.recomputed, seq.batch, head, row)] = left ? 1 : 0;
  }
  if (p.want_lse) static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, head, row)] = finalize_natural(all).lse;
  if (p.want_row_max)
    static_cast<float*>(a.row_max.data)[lse_offset(a.row_max, seq.batch, head, row)] =
        largest_score(to_natural(of_keys, unit.to_log2, unit.to_natural));
  const std::int64_t at = row_offset(a.out, seq.batch, head, row);
  with_float_type(p.out_dtype, [&](auto zero) { store_row<decltype(zero)>(sum, p.dim_v, a.out.data, at); });
}

void combine(const Problem& p, const Tensors& a, const Partials& partials, const ScoreUnit& unit, Executor& executor) {
  combine(p, a, partials, unit, entries_of(p, a, {}), executor);
}

void combine(const Problem& p, const Tensors& a, const Partials& partials, const ScoreUnit& unit,
             const std::vector<std::int64_t>& entries, Executor& executor) {
  const std::int64_t longest = longest_of(p, a, entries).seq_q;
  const std::int64_t blocks = ceil_div(longest, kRowsPerTask);  // of tokens, per head
  const auto count = static_cast<std::int64_t>(entries.size());
  parallel(executor, count * p.heads_q * blocks, [&](std::int64_t t, int) {
    const FlushToZero mode(p.batch_invariant);  // as in the task of a kernel that joins splits itself
    const std::int64_t batch = entries[static_cast<std::size_t>(t / (p.heads_q * blocks))],
                       head = t / blocks % p.heads_q, from = t % blocks * kRowsPerTask;
    const Sequence seq = sequence_of(p, a, batch);
    for (std::int64_t i = from; i < std::min(from + kRowsPerTask, seq.seq_q); ++i) {
      const std::int64_t row = partial_row(p, seq, head, i);
      finalize_row(p, a, seq, head, i, &partials.state_of(row, 0), partials.out_of(row, 0), partials.splits, unit,
                   partials.most ? partials.most + row * partials.splits : nullptr,
                   partials.entropy ? partials.entropy + row * partials.splits : nullptr);
    }
  });
}

}  // namespace onepass::cpu
