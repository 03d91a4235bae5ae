// One random head for the table, stored as the problem's dtype says, with the float64 oracle's answers.
#pragma once
#include <random>

#include "ladder/steps/tangents/forward_mode.hpp"
#include "reference/gradients.hpp"

namespace onepass::ladder {

template <class Storage>
float rounded_to(float x) {
  return to_float(from_float<Storage>(x));
}
inline Format<float> format_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {2, rounded_to<f16>};
    case DType::bf16: return {2, rounded_to<bf16>};
    default: return {4, nullptr};
  }
}

// One element of 'q', 'k', 'v', 'd' (dO) or 't', a tangent.
using Draw = float (*)(char tensor, std::mt19937& rng, std::normal_distribution<float>& normal);

// Scores have a standard deviation of 3, so that weights are neither uniform nor one-hot.
inline float draw_spread(char tensor, std::mt19937& rng, std::normal_distribution<float>& normal) {
  return tensor == 'q' ? 3 * normal(rng) : normal(rng);
}

class RandomHead {
 public:
  explicit RandomHead(const Problem& problem, Draw draw = draw_spread)
      : problem_(problem),
        format_(format_of(problem.dtype)),
        head_{random('q', draw, problem.seq_q, problem.dim_qk), random('k', draw, problem.seq_k, problem.dim_qk),
              random('v', draw, problem.seq_k, problem.dim_v), band_mask(problem, problem.seq_q, problem.seq_k),
              Dropout::of(problem.dropout_p, problem.seed)},
        d_o_(random('d', draw, problem.seq_q, problem.dim_v)),
        tangents_{random('t', draw, problem.seq_q, problem.dim_qk), random('t', draw, problem.seq_k, problem.dim_qk),
                  random('t', draw, problem.seq_k, problem.dim_v)},
        td_o_(random('t', draw, problem.seq_q, problem.dim_v)) {}

  const Head<float>& head() const { return head_; }
  const Slow<float>& d_o() const { return d_o_; }
  const Tangents<float>& tangents() const { return tangents_; }
  const Slow<float>& td_o() const { return td_o_; }
  reference::Dense forward() const { return reference::oracle(f32_problem(), arguments(), default_executor()); }
  reference::DenseGradients backward() const {
    return reference::oracle_backward(f32_problem(), arguments(), tensor(d_o_), default_executor());
  }
  reference::DenseTangents forward_mode() const {
    return reference::oracle_tangents(f32_problem(), arguments(), default_executor());
  }
  reference::DenseGradients second_derivatives() const {
    Problem p = f32_problem();
    p.tdout = true;
    return reference::oracle_double_backward(p, arguments(), default_executor());
  }

 private:
  Slow<float> random(char tensor, Draw draw, Index rows, Index cols) {
    Slow<float> x(rows, cols, format_);
    std::normal_distribution<float> normal;
    for (float& e : x.outside()) {
      e = draw(tensor, rng_, normal);
      if (format_.round) e = format_.round(e);
    }
    return x;
  }
  static ConstTensor tensor(const Slow<float>& x) {
    return ConstTensor(x.outside().data(), DType::f32, {1, 1, x.rows(), x.cols()});
  }
  Tensors arguments() const {
    Tensors a;
    a.q = tensor(head_.q);
    a.k = tensor(head_.k);
    a.v = tensor(head_.v);
    a.tq = tensor(tangents_.q);
    a.tk = tensor(tangents_.k);
    a.tv = tensor(tangents_.v);
    a.dout = tensor(d_o_);
    a.tdout = tensor(td_o_);
    return a;
  }
  Problem f32_problem() const {  // the oracle reads the rounded values as fp32
    Problem p = problem_;
    p.dtype = p.out_dtype = DType::f32;
    return p;
  }

  Problem problem_;
  Format<float> format_;
  std::mt19937 rng_{42};
  Head<float> head_;
  Slow<float> d_o_;
  Tangents<float> tangents_;
  Slow<float> td_o_;
};

}  // namespace onepass::ladder
