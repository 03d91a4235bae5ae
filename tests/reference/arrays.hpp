// The numbers of a long double forward as fp32 tensors.
#pragma once
#include <vector>

#include "long_double_forward.hpp"
#include "problem/tensors.hpp"

namespace onepass::reference {

inline std::vector<float> as_floats(const std::vector<Real>& x) { return {x.begin(), x.end()}; }

// The same numbers as tensors.
struct Arrays {
  std::vector<float> q, k, v, d_out, d_lse, d_entropy, bias, sinks, slopes;
  explicit Arrays(const Numbers& x)
      : q(as_floats(x.q)),
        k(as_floats(x.k)),
        v(as_floats(x.v)),
        d_out(as_floats(x.d_out)),
        d_lse(as_floats(x.d_lse)),
        d_entropy(as_floats(x.d_entropy)),
        bias(as_floats(x.bias)),
        sinks(as_floats(x.sinks)),
        slopes(as_floats(x.slopes)) {}
};

inline ConstTensor tokens(const Problem& p, const std::vector<float>& data, std::int64_t heads, std::int64_t seq,
                          std::int64_t total, std::int64_t dim) {
  return p.varlen ? ConstTensor(data.data(), DType::f32, {total, heads, dim})
                  : ConstTensor(data.data(), DType::f32, {p.batch, heads, seq, dim});
}
inline Tensors arguments_of(const Problem& p, const Numbers& x, const Arrays& arrays) {
  Tensors a;
  a.q = tokens(p, arrays.q, p.heads_q, p.seq_q, p.total_q, p.dim_qk);
  a.k = tokens(p, arrays.k, p.heads_kv, p.seq_k, p.total_k, p.dim_qk);
  a.v = tokens(p, arrays.v, p.heads_kv, p.seq_k, p.total_k, p.dim_v);
  a.bias = ConstTensor(arrays.bias.data(), DType::f32, {1, p.heads_q, 1, p.seq_k});
  a.bool_mask = ConstTensor(x.seen.data(), DType::boolean, {1, 1, p.seq_q, p.seq_k});
  a.sinks = ConstTensor(arrays.sinks.data(), DType::f32, {p.heads_q});
  a.alibi_slopes = ConstTensor(arrays.slopes.data(), DType::f32, {p.heads_q});
  a.cu_seqlens_q = ConstTensor(x.cu_q.data(), DType::i32, {p.batch + 1});
  a.cu_seqlens_k = ConstTensor(x.cu_k.data(), DType::i32, {p.batch + 1});
  return a;
}

}  // namespace onepass::reference
