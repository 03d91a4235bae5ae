#include "reference/textbook.hpp"

#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"
#include "reference/flat_gemm.hpp"
#include "reference/merged.hpp"
#include "reference/softmax.hpp"

namespace onepass::reference {

std::int64_t dense_out_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row) {
  return p.varlen ? ((s.q_begin + row) * p.heads_q + head) * p.dim_v
                  : ((s.batch * p.heads_q + head) * p.seq_q + row) * p.dim_v;
}
std::int64_t dense_lse_index(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row) {
  return p.varlen ? head * p.total_q + s.q_begin + row : (s.batch * p.heads_q + head) * p.seq_q + row;
}

Dense oracle(const Problem& p, const Tensors& a, Executor& executor) {
  if (p.op == Op::merge) return merged_oracle(p, a);
  if (is_softmax(p.op)) return softmax_oracle(p, a);
  if (is_gemm(p.op)) return flat_gemm_oracle(p, a);
  return textbook<double>(p, a, Exact{}, executor);
}

Dense base(const Problem& p, const Tensors& a, Executor& executor) {
  if (p.op == Op::merge) return merged_base(p, a);
  if (is_softmax(p.op)) return softmax_base(p, a);
  if (is_gemm(p.op)) return flat_gemm_base(p, a);
  const DType dtype = p.dtype == DType::f8e4m3 ? p.out_dtype : p.dtype;
  if (p.dtype == DType::f8e4m3)
    return dtype == DType::f16 ? textbook<float>(p, a, Fp8Weights<f16>{}, executor)
                               : textbook<float>(p, a, Fp8Weights<bf16>{}, executor);
  switch (dtype) {
    case DType::bf16: return textbook<float>(p, a, Stored<bf16>{}, executor);
    case DType::f16: return textbook<float>(p, a, Stored<f16>{}, executor);
    default: return textbook<float>(p, a, Exact{}, executor);
  }
}

}  // namespace onepass::reference
