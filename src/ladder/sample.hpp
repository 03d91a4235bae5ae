// One random head for the table, stored as the problem's dtype says, with the float64 oracle's answers.
#pragma once
#include <random>

#include "ladder/head.hpp"
#include "ladder/textbook_backward.hpp"

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

// Scores have a standard deviation of 3, so that weights are neither uniform nor one-hot.
class RandomHead {
 public:
  explicit RandomHead(const Problem& problem)
      : problem_(problem),
        format_(format_of(problem.dtype)),
        head_{random(problem.seq_q, problem.dim_qk, 3.0f), random(problem.seq_k, problem.dim_qk, 1.0f),
              random(problem.seq_k, problem.dim_v, 1.0f), band_mask(problem, problem.seq_q, problem.seq_k),
              Dropout::of(problem.dropout_p, problem.seed)},
        d_o_(random(problem.seq_q, problem.dim_v, 1.0f)) {}

  const Head<float>& head() const { return head_; }
  const Slow<float>& d_o() const { return d_o_; }
  Dense forward() const { return oracle(f32_problem(), arguments(), default_executor()); }
  DenseGradients backward() const {
    return oracle_backward(f32_problem(), arguments(), tensor(d_o_), default_executor());
  }

 private:
  Slow<float> random(Index rows, Index cols, float size) {
    Slow<float> x(rows, cols, format_);
    std::normal_distribution<float> normal;
    for (float& e : x.outside()) {
      e = size * normal(rng_);
      if (format_.round) e = format_.round(e);
    }
    return x;
  }
  static Tensor tensor(const Slow<float>& x) {
    return Tensor(x.outside().data(), DType::f32, {1, 1, x.rows(), x.cols()});
  }
  Arguments arguments() const {
    Arguments a;
    a.q = tensor(head_.q);
    a.k = tensor(head_.k);
    a.v = tensor(head_.v);
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
};

}  // namespace onepass::ladder
