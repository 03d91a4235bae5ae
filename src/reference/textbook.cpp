#include "reference/textbook.hpp"

#include <array>

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

namespace {

Dense forward_oracle(const Problem& p, const Tensors& a, Executor& executor) {
  return textbook<double>(p, a, Exact{}, executor);
}
Dense forward_base(const Problem& p, const Tensors& a, Executor& executor) {
  const DType dtype = p.dtype == DType::f8e4m3 ? p.out_dtype : p.dtype;
  if (p.dtype == DType::f8e4m3)
    return dtype == DType::f16 ? textbook<float>(p, a, Fp8Weights<f16>{}, executor)
                               : textbook<float>(p, a, Fp8Weights<bf16>{}, executor);
  switch (dtype) {
    case DType::bf16: return textbook<float>(p, a, Stored<bf16>{}, executor);
    case DType::f16: return textbook<float>(p, a, Stored<f16>{}, executor);
    default:
      return p.precision == Precision::tf32 ? textbook<float>(p, a, Tf32Weights{}, executor)
                                            : textbook<float>(p, a, Exact{}, executor);
  }
}
template <auto compute>
Dense alone(const Problem& p, const Tensors& a, Executor&) {
  return compute(p, a);
}

// A backward has its forward's.
struct Reference {
  Dense (*oracle)(const Problem& p, const Tensors& a, Executor& executor);
  Dense (*base)(const Problem& p, const Tensors& a, Executor& executor);
};
const Reference& reference_of(Op op) {
  static constexpr struct {
    Op op;
    Reference of;
  } kAll[]{{kForward, {forward_oracle, forward_base}},
           {kBackward, {forward_oracle, forward_base}},
           {kJvp, {forward_oracle, forward_base}},
           {kBackwardJvp, {forward_oracle, forward_base}},
           {kMerge, {alone<merged_oracle>, alone<merged_base>}},
           {kSoftmax, {alone<softmax_oracle>, alone<softmax_base>}},
           {kSoftmaxBackward, {alone<softmax_oracle>, alone<softmax_base>}},
           {kFlatGemm, {alone<flat_gemm_oracle>, alone<flat_gemm_base>}},
           {kLinear, {alone<flat_gemm_oracle>, alone<flat_gemm_base>}}};
  return row_of(kAll, op).of;
}

}  // namespace

Dense oracle(const Problem& p, const Tensors& a, Executor& executor) {
  return reference_of(p.op).oracle(p, a, executor);
}
Dense base(const Problem& p, const Tensors& a, Executor& executor) { return reference_of(p.op).base(p, a, executor); }

}  // namespace onepass::reference
