#include "cpu/backward/sums.hpp"

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "base/parallel.hpp"
#include "cpu/common/combine.hpp"
#include "problem/attention/score.hpp"
#include "problem/attention/zero_gradients.hpp"

namespace onepass::cpu::backward {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

std::int64_t blocks_of(std::int64_t rows) { return ceil_div(rows, kRowsPerTask); }

std::int64_t bias_parts(const Problem& p, const Plan& plan) {
  const bool by_row = plan.bias == BiasSums::by_row;
  return by_row ? plan.cut.key_splits * rows_of(p) : plan.cut.row_splits * p.batch * p.heads_q * p.seq_k;
}
std::int64_t slope_parts(const Plan& plan) { return plan.cut.row_splits * plan.cut.key_splits; }
std::int64_t stat_blocks(const Problem& p) { return ceil_div(p.seq_q, kStatRows); }

// f(batch, head, first token, end) over blocks of the tokens of every sequence.
template <class F>
void each_row_block(Executor& executor, const Problem& p, const Tensors& a, const Longest& longest, bool of_keys,
                    F&& f) {
  const std::int64_t heads = of_keys ? p.heads_kv : p.heads_q,
                     blocks = blocks_of(of_keys ? longest.seq_k : longest.seq_q);
  parallel(executor, p.batch * heads * blocks, [&](std::int64_t t, int) {
    const std::int64_t batch = t / (heads * blocks), from = t % blocks * kRowsPerTask;
    const Sequence seq = sequence_of(p, a, batch);
    f(batch, seq, t / blocks % heads, from, std::min(from + kRowsPerTask, of_keys ? seq.seq_k : seq.seq_q));
  });
}

// Leaves out parts that are not there at both ends of [first, end), and makes those between zeros. seen(n): whether
// part n is there; at(n): its `dim` numbers.
template <class Seen, class At>
void cut_parts(std::int64_t& first, std::int64_t& end, std::int64_t dim, const Seen& seen, const At& at) {
  while (first < end && !seen(first)) ++first;
  while (first < end && !seen(end - 1)) --end;
  for (std::int64_t n = first; n < end; ++n)
    if (!seen(n)) std::fill_n(at(n), dim, 0.0f);
}

void sum_dq(const Problem& p, const Tensors& a, const Plan& plan, const Parts& all, const Kernels& kernels,
            Executor& executor) {
  float* const parts = all.dq;
  const std::int64_t chunk = plan.cut.key_chunk, size = static_cast<std::int64_t>(size_of(a.dq.dtype));
  each_row_block(executor, p, a, plan.longest, false,
                 [&](std::int64_t, const Sequence& seq, std::int64_t head, std::int64_t from, std::int64_t to) {
                   const BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
                   for (std::int64_t i = from; i < to; ++i) {
                     const Range keys = band.keys_of(i);  // the splits of other keys may have left this row out
                     const bool any = keys.lo < keys.hi;
                     std::int64_t first = any ? keys.lo / chunk : 0, end = any ? (keys.hi - 1) / chunk + 1 : 0;
                     const std::int64_t row = partial_row(p, seq, head, i);
                     if (all.dq_seen)
                       cut_parts(
                           first, end, p.dim_qk, [&](auto n) { return all.dq_seen[n * rows_of(p) + row] != 0; },
                           [&](auto n) { return parts + (n * rows_of(p) + row) * p.dim_qk; });
                     const std::int64_t at = row_offset(a.dq, seq.batch, head, seq.q_begin + i);
                     kernels.sum(parts + row * p.dim_qk, rows_of(p) * p.dim_qk, first, end - first, p.dim_qk,
                                 a.dq.dtype, static_cast<std::byte*>(a.dq.data) + at * size);
                   }
                 });
}

void sum_keys(const Problem& p, const Tensors& a, const Plan& plan, float* parts, const std::uint8_t* seen,
              const Tensor& out, std::int64_t dim, const Kernels& kernels, Executor& executor) {
  const std::int64_t size = static_cast<std::int64_t>(size_of(out.dtype));
  each_row_block(executor, p, a, plan.longest, true,
                 [&](std::int64_t batch, const Sequence& seq, std::int64_t head, std::int64_t from, std::int64_t to) {
                   for (std::int64_t j = from; j < to; ++j) {
                     const std::int64_t at = row_offset(out, seq.batch, head, seq.k_begin + j),
                                        row = key_row(p, seq, head, j), split = j / plan.cut.key_chunk;
                     std::int64_t first = 0, end = plan.cut.row_splits;
                     const auto there = [&](std::int64_t n) {
                       return seen[((n * p.batch + batch) * p.heads_kv + head) * plan.cut.key_splits + split] != 0;
                     };
                     if (seen)
                       cut_parts(first, end, dim, there,
                                 [&](auto n) { return parts + (n * key_rows_of(p) + row) * dim; });
                     kernels.sum(parts + row * dim, key_rows_of(p) * dim, first, end - first, dim, out.dtype,
                                 static_cast<std::byte*>(out.data) + at * size);
                   }
                 });
}

// One element of a bias that spans rows or keys or neither: over everything else.
double bias_element(const Problem& p, const Tensors& a, const Plan& plan, const float* parts, const Dims& at) {
  const Dims& shape = a.dbias.shape;
  const auto span = [&](int dimension, std::int64_t whole) {
    return shape[dimension] == 1 ? Range{0, whole} : Range{at[dimension], at[dimension] + 1};
  };
  const bool by_row = plan.bias == BiasSums::by_row;
  double sum = 0;
  const Range batches = span(0, p.batch), heads = span(1, p.heads_q);
  for (std::int64_t b = batches.lo; b < batches.hi; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    const Range of = by_row ? span(2, seq.seq_q) : span(3, seq.seq_k);
    const std::int64_t end = std::min<std::int64_t>(of.hi, by_row ? seq.seq_q : seq.seq_k);
    for (std::int64_t h = heads.lo; h < heads.hi; ++h) {
      for (std::int64_t i = of.lo; i < end; ++i) {
        const std::int64_t row = by_row ? partial_row(p, seq, h, i) : (b * p.heads_q + h) * p.seq_k + i;
        const std::int64_t step = by_row ? rows_of(p) : p.batch * p.heads_q * p.seq_k;
        for (std::int64_t n = 0; n < (by_row ? plan.cut.key_splits : plan.cut.row_splits); ++n)
          sum += static_cast<double>(parts[n * step + row]);
      }
    }
  }
  return sum;
}

void sum_bias(const Problem& p, const Tensors& a, const Plan& plan, const float* parts, Executor& executor) {
  const Dims shape = a.dbias.shape, stride = broadcast_strides(a.dbias);
  const std::int64_t elements = a.dbias.elements();
  parallel(executor, blocks_of(elements), [&](std::int64_t t, int) {
    for (std::int64_t e = t * kRowsPerTask; e < std::min((t + 1) * kRowsPerTask, elements); ++e) {
      Dims at{};
      std::int64_t rest = e, to = 0;
      for (int d = kMaxRank - 1; d >= 0; rest /= shape[d--]) at[d] = rest % shape[d], to += at[d] * stride[d];
      static_cast<float*>(a.dbias.data)[to] = static_cast<float>(bias_element(p, a, plan, parts, at));
    }
  });
}

void sum_slopes(const Problem& p, const Tensors& a, const Plan& plan, const double* parts) {
  const Tensor& t = a.dalibi_slopes;
  const std::int64_t batches = t.rank == 2 ? p.batch : 1, step = p.batch * p.heads_q;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      double sum = 0;
      for (std::int64_t from = b; from < (t.rank == 2 ? b + 1 : p.batch); ++from)
        for (std::int64_t n = 0; n < slope_parts(plan); ++n) sum += parts[n * step + from * p.heads_q + h];
      static_cast<float*>(t.data)[(t.rank == 2 ? b * t.stride[0] : 0) + h * t.stride[t.rank - 1]] =
          static_cast<float>(sum);
    }
  }
}

void sum_sinks(const Problem& p, const Tensors& a, const double* parts) {
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t n = 0; n < stat_blocks(p); ++n) sum += parts[(b * p.heads_q + h) * stat_blocks(p) + n];
    static_cast<float*>(a.dsinks.data)[h * a.dsinks.stride[0]] = static_cast<float>(sum);
  }
}

}  // namespace

Call call_of(const Problem& p, const Tensors& a, const flash::Geometry& geometry, const Plan& plan, const Parts& parts,
             const Mods& mods, const std::optional<MaskBounds>& bounds) {
  return {{.problem = p,
           .arguments = a,
           .geometry = geometry,
           .k_source = plan.k,
           .v_source = plan.v,
           .panels = plan.cut.panels,
           .splits = {1, p.seq_k},
           .partials = {},
           .dropout = dropout_of(p, a),
           .mods = mods,
           .mask_bounds = bounds ? &*bounds : nullptr},
          plan.cut,
          static_cast<float>(p.effective_scale()),
          parts.delta,
          parts.dq,
          parts.dk,
          parts.dv,
          plan.bias,
          parts.dbias,
          parts.dslopes,
          parts.dsinks,
          parts.dq_seen,
          parts.dkv_seen};
}

Parts book_parts(Workspace& w, const Problem& p, const Plan& plan) {
  const Gradients& g = p.gradients;
  const Cut& c = plan.cut;
  Parts parts;
  if (has_zero_gradients(p)) return parts;  // no kernel runs
  parts.delta = w.take<float>(rows_of(p));
  if (g.dq && c.key_splits > 1) parts.dq = w.take<float>(c.key_splits * rows_of(p) * p.dim_qk);
  if (g.dk && c.row_splits > 1) parts.dk = w.take<float>(c.row_splits * key_rows_of(p) * p.dim_qk);
  if (g.dv && c.row_splits > 1) parts.dv = w.take<float>(c.row_splits * key_rows_of(p) * p.dim_v);
  if (plan.bias == BiasSums::by_row || plan.bias == BiasSums::by_key) parts.dbias = w.take<float>(bias_parts(p, plan));
  if (g.dalibi_slopes) parts.dslopes = w.take<double>(slope_parts(plan) * p.batch * p.heads_q);
  const bool masked = !p.mask_mod.empty();
  if (masked && g.dq && c.key_splits > 1) parts.dq_seen = w.take<std::uint8_t>(c.key_splits * rows_of(p));
  if (masked && c.row_splits > 1)
    parts.dkv_seen = w.take<std::uint8_t>(c.row_splits * p.batch * p.heads_kv * c.key_splits);
  if (g.dsinks) parts.dsinks = w.take<double>(p.batch * p.heads_q * stat_blocks(p));
  return parts;
}

void clear(const Problem& p, const Tensors& a, const Plan& plan, const Parts& parts, Executor& executor) {
  if (parts.dbias) std::fill_n(parts.dbias, bias_parts(p, plan), 0.0f);
  if (parts.dslopes) std::fill_n(parts.dslopes, slope_parts(plan) * p.batch * p.heads_q, 0.0);
  if (plan.bias != BiasSums::in_place) return;
  const Dims shape = a.dbias.shape, stride = broadcast_strides(a.dbias);
  parallel(executor, shape[0] * shape[1] * shape[2], [&](std::int64_t t, int) {
    float* row = static_cast<float*>(a.dbias.data) + t / (shape[1] * shape[2]) * stride[0] +
                 t / shape[2] % shape[1] * stride[1] + t % shape[2] * stride[2];
    for (std::int64_t j = 0; j < shape[3]; ++j) row[j * stride[3]] = 0.0f;
  });
}

void sum_parts(const Problem& p, const Tensors& a, const Plan& plan, const Parts& parts, const Kernels& kernels,
               Executor& executor) {
  if (parts.dq) sum_dq(p, a, plan, parts, kernels, executor);
  if (parts.dk) sum_keys(p, a, plan, parts.dk, parts.dkv_seen, a.dk, p.dim_qk, kernels, executor);
  if (parts.dv) sum_keys(p, a, plan, parts.dv, parts.dkv_seen, a.dv, p.dim_v, kernels, executor);
  if (parts.dbias) sum_bias(p, a, plan, parts.dbias, executor);
  if (parts.dslopes) sum_slopes(p, a, plan, parts.dslopes);
  if (parts.dsinks) sum_sinks(p, a, parts.dsinks);
}

}  // namespace onepass::cpu::backward
