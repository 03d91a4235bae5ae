#include "cpu/common/combine.hpp"

#include <algorithm>
#include <cmath>

#include "core/numerics.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kMaxDim = 512;  // of v
constexpr std::int64_t kRowsPerTask = 16;
// A split far below the others has a share of 2^-150 = 0; if it saw an infinity, that must stay one all the same.
constexpr float kLeastShare = 0x1p-100f;

// Joins (state, sum) with the splits in order. least = 0; or more, to keep what a negligible split saw of infinity.
RowState<float> join(const RowState<float>* states, const float* out, std::int64_t splits, std::int64_t dim,
                     float to_log2, float least, float* sum) {
  RowState<float> all;
  std::fill_n(sum, dim, 0.0f);
  for (std::int64_t i = 0; i < splits; ++i) {
    if (states[i].l == 0) continue;  // has seen nothing; its O is not read
    const Merged<float> joined = merge(all, states[i], to_log2);
    const float a = std::max(joined.alpha_a, least), b = std::max(joined.alpha_b, least);  // a NaN stays
    const float* o = out + i * dim;
    for (std::int64_t d = 0; d < dim; ++d) sum[d] = a * sum[d] + b * o[d];
    all = joined.state;
  }
  return all;
}

bool finite(const float* x, std::int64_t count) {
  float probe = 0;
  for (std::int64_t i = 0; i < count; ++i) probe += x[i] * 0.0f;
  return probe == 0;
}

template <class T>
void store_row(const float* from, std::int64_t dim, void* base, std::int64_t at) {
  T* to = static_cast<T*>(base) + at;
  for (std::int64_t d = 0; d < dim; ++d) to[d] = from_float<T>(from[d]);
}

}  // namespace

std::int64_t partial_row(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t token) {
  return p.varlen ? head * p.total_q + s.q_begin + token : (s.batch * p.heads_q + head) * p.seq_q + token;
}

Partials book_partials(Workspace& workspace, const Problem& p, std::int64_t splits) {
  const std::int64_t rows = p.heads_q * (p.varlen ? p.total_q : p.batch * p.seq_q);
  Partials partials{splits, p.dim_v, nullptr, nullptr};
  partials.state = workspace.take<RowState<float>>(rows * splits);
  partials.out = workspace.take<float>(rows * splits * p.dim_v);
  return partials;
}

void finish_row(const Problem& p, const Arguments& a, const Sequence& seq, std::int64_t head, std::int64_t token,
                const RowState<float>* states, const float* out, std::int64_t splits, const ScoreUnit& unit) {
  float sum[kMaxDim];
  RowState<float> all = join(states, out, splits, p.dim_v, unit.to_log2, 0.0f, sum);
  const float least = finite(sum, p.dim_v) ? 0.0f : kLeastShare;
  if (least > 0) all = join(states, out, splits, p.dim_v, unit.to_log2, least, sum);
  all = to_natural(all, unit.to_log2, unit.to_natural);
  if (p.sinks) {
    const float sink = static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]];
    const Merged<float> joined = join_natural_sink(all, sink);
    const float alpha = std::max(joined.alpha_a, least);
    for (std::int64_t d = 0; d < p.dim_v; ++d) sum[d] *= alpha;
    all = joined.state;
  }
  // Divided, not multiplied by 1/l: a weight of its own size, w v / w, then is v but for one rounding.
  if (all.l != 0) {
    for (std::int64_t d = 0; d < p.dim_v; ++d) sum[d] /= all.l;
  }
  const std::int64_t row = seq.q_begin + token;
  if (p.want_lse) static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, head, row)] = finalize_natural(all).lse;
  const std::int64_t at = row_offset(a.out, seq.batch, head, row);
  with_float_type(p.out_dtype, [&](auto zero) { store_row<decltype(zero)>(sum, p.dim_v, a.out.data, at); });
}

void combine(const Problem& p, const Arguments& a, const Partials& partials, const ScoreUnit& unit,
             Executor& executor) {
  const std::int64_t blocks = (p.seq_q + kRowsPerTask - 1) / kRowsPerTask;  // of tokens, per head
  auto task = [&](std::int64_t t) {
    const std::int64_t batch = t / (p.heads_q * blocks), head = t / blocks % p.heads_q,
                       from = t % blocks * kRowsPerTask;
    const Sequence seq = sequence_of(p, a, batch);
    for (std::int64_t i = from; i < std::min(from + kRowsPerTask, seq.seq_q); ++i) {
      const std::int64_t row = partial_row(p, seq, head, i);
      finish_row(p, a, seq, head, i, &partials.state_of(row, 0), partials.out_of(row, 0), partials.splits, unit);
    }
  };
  executor.parallel_for(
      p.batch * p.heads_q * blocks, [](void* f, std::int64_t t, int) { (*static_cast<decltype(task)*>(f))(t); }, &task);
}

}  // namespace onepass::cpu
