#include "reference/gradients.hpp"

#include <mutex>
#include <type_traits>

#include "reference/derivatives/head_gradients.hpp"

namespace onepass::reference {
namespace {

RowStatistics statistics_for(const Problem& p) {
  const auto rows = static_cast<std::size_t>((p.varlen ? p.total_q : p.batch * p.seq_q) * p.heads_q);
  const std::vector<double> zeros(rows);
  return {std::vector<double>(rows, -INFINITY), zeros, zeros, zeros};
}

// D of a row; a number of O that is exactly 0 stands for no visible key, whatever dO holds.
void add_dot_with_out(RowStatistics& rows, std::int64_t at, const std::vector<double>& d_out, const double* out) {
  for (std::size_t d = 0; d < d_out.size(); ++d) {
    const double product = out[d] == 0 ? 0 : d_out[d] * out[d];
    rows.delta[at] += product;
    rows.delta_terms[at] += std::abs(product);
  }
}

RowStatistics given_statistics(const Problem& p, const Tensors& a) {
  RowStatistics rows = statistics_for(p);
  for_each_row(p, a, [&](const Sequence& seq, std::int64_t h, std::int64_t i, std::int64_t at) {
    const std::int64_t token = seq.q_begin + i;
    const auto d_out = numbers_of<double>(a.dout, row_offset(a.dout, seq.batch, h, token), p.dim_v);
    const auto out = numbers_of<double>(a.out, row_offset(a.out, seq.batch, h, token), p.dim_v);
    rows.lse[at] = static_cast<double>(load_element(a.lse.data, DType::f32, lse_offset(a.lse, seq.batch, h, token)));
    add_dot_with_out(rows, at, d_out, out.data());
    const auto number = [&](const ConstTensor& t) {
      return static_cast<double>(load_element(t.data, DType::f32, lse_offset(t, seq.batch, h, token)));
    };
    const auto add = [&](double term) { rows.delta[at] += term, rows.delta_terms[at] += std::abs(term); };
    if (p.dlse) add(-number(a.dlse));
    if (!p.dentropy) return;
    rows.dentropy[at] = number(a.dentropy);
    add(rows.dentropy[at] * number(a.entropy));
  });
  return rows;
}

template <class T, class Round>
DenseGradients gradients(const Problem& p, const Tensors& a, const ConstTensor& d_out, const RowStatistics& rows,
                         Round round, Executor& executor) {
  DenseGradients g = zero_gradients(p, a, std::is_same_v<T, double> && rounds(p));
  const Mods mods = mods_of(p, p.mod_buffers);
  const ScoreParams params = score_params(p, a, &mods);
  std::mutex shared;
  parallel(executor, p.batch * p.heads_kv, [&](std::int64_t t, int) {
    HeadGradients<T, Round>(p, a, d_out, rows, params, round, g, shared, t / p.heads_kv, t % p.heads_kv).run();
  });
  return g;
}

}  // namespace

DenseGradients zero_gradients(const Problem& p, const Tensors& a, bool stored) {
  const std::int64_t tokens_q = p.varlen ? p.total_q : p.batch * p.seq_q,
                     tokens_k = p.varlen ? p.total_k : p.batch * p.seq_k;
  DenseGradients g;
  g.dq.resize(tokens_q * p.heads_q * p.dim_qk, stored);
  g.dk.resize(tokens_k * p.heads_kv * p.dim_qk, stored);
  g.dv.resize(tokens_k * p.heads_kv * p.dim_v, stored);
  g.dbias.resize(p.bias ? a.bias.elements() : 0, stored);
  g.dsinks.resize(p.sinks ? p.heads_q : 0, stored);
  g.dalibi_slopes.resize(p.alibi ? a.alibi_slopes.elements() : 0, stored);
  return g;
}

DenseGradient& DenseGradients::of(Role role) {
  switch (role) {
    case Role::dq:
    case Role::tdq: return dq;
    case Role::dk:
    case Role::tdk: return dk;
    case Role::dv:
    case Role::tdv: return dv;
    case Role::dbias:
    case Role::tdbias: return dbias;
    case Role::dsinks:
    case Role::tdsinks: return dsinks;
    default: return dalibi_slopes;
  }
}

void each_number(const Problem& p, const Tensors& a, const RoleRow& row, const Tensor& t,
                 const std::function<void(std::int64_t, std::int64_t)>& look) {
  if (!row.unit_last) {
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      std::int64_t at = 0, rest = i;
      for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--]) at += rest % t.shape[d] * t.stride[d];
      look(at, i);
    }
    return;
  }
  const bool of_keys = row.gradient_of != Role::q;
  const std::int64_t dim = t.shape[t.rank - 1];
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < (of_keys ? p.heads_kv : p.heads_q); ++h) {
      for (std::int64_t i = 0; i < (of_keys ? seq.seq_k : seq.seq_q); ++i) {
        const std::int64_t from = row_offset(t, seq.batch, h, (of_keys ? seq.k_begin : seq.q_begin) + i),
                           at = dense_gradient_index(p, seq, of_keys, h, i, dim);
        for (std::int64_t d = 0; d < dim; ++d) look(from + d, at + d);
      }
    }
  }
}

DenseGradients oracle_gradients(const Problem& p, const Tensors& a, Executor& executor) {
  return gradients<double>(p, a, a.dout, given_statistics(p, a), Exact{}, executor);
}

DenseGradients base_gradients(const Problem& p, const Tensors& a, Executor& executor) {
  const RowStatistics rows = given_statistics(p, a);
  return with_own_rounding(p, [&](auto round) { return gradients<float>(p, a, a.dout, rows, round, executor); });
}

DenseGradients oracle_backward(const Problem& p, const Tensors& a, const ConstTensor& d_out, Executor& executor) {
  const Dense forward = oracle(p, a, executor);
  RowStatistics rows = statistics_for(p);
  for_each_row(p, a, [&](const Sequence& seq, std::int64_t h, std::int64_t i, std::int64_t at) {
    const auto d_o = numbers_of<double>(d_out, row_offset(d_out, seq.batch, h, seq.q_begin + i), p.dim_v);
    rows.lse[at] = forward.lse[at];
    add_dot_with_out(rows, at, d_o, forward.out.data() + dense_out_index(p, seq, h, i));
  });
  return gradients<double>(p, a, d_out, rows, Exact{}, executor);
}

}  // namespace onepass::reference
