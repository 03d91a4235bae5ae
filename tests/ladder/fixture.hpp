// One random head as the ladder takes it, with the float64 oracle's answers.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "counted.hpp"
#include "ladder/steps/tangents/forward_mode.hpp"
#include "reference/gradients.hpp"

namespace onepass::ladder {

// Problems of the rungs that compute derivatives.
inline constexpr const char* kDerivativeProblems[] = {
    "fwd b1 h1 s64 d16 fp32",
    "fwd b1 h1 s1 d1 fp32",
    "fwd b1 h1 s37x61 d8/5 fp32",
    "fwd b1 h1 s65x129 d7 fp32 causal_bottom_right",
    "fwd b1 h1 s70x33 d8 fp32 causal_bottom_right",
    "fwd b1 h1 s50 d8 fp32 window=9:4",
    "fwd b1 h1 s40x63 d8 fp32 dropout=0.3 seed=5",
    "fwd b1 h1 s63 d8/12 fp32 causal_bottom_right dropout=0.1 seed=7",
    "fwd b1 h1 s5x0 d4 fp32",
    "fwd b1 h1 s0x5 d4 fp32",
};

inline double number(double x) { return x; }
inline double number(Counted x) { return x.value; }

// The problem line says sizes, mask and dropout; batch and heads are 1. Scores have a standard deviation of 3.
struct Sample {
  Problem problem;
  std::vector<float> q, k, v, d_out, tq, tk, tv, td_out;
  std::vector<double> out, lse;

  explicit Sample(const std::string& line, unsigned seed = 1) : problem(parse_problem(line)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, std::int64_t count, float size) {
      x.resize(static_cast<std::size_t>(count));
      for (float& e : x) e = size * normal(rng);
    };
    fill(q, problem.seq_q * problem.dim_qk, 3.0f);
    fill(k, problem.seq_k * problem.dim_qk, 1.0f);
    fill(v, problem.seq_k * problem.dim_v, 1.0f);
    fill(d_out, problem.seq_q * problem.dim_v, 1.0f);
    fill(tq, problem.seq_q * problem.dim_qk, 1.0f);
    fill(tk, problem.seq_k * problem.dim_qk, 1.0f);
    fill(tv, problem.seq_k * problem.dim_v, 1.0f);
    fill(td_out, problem.seq_q * problem.dim_v, 1.0f);
    solve();
  }
  void solve() {
    const reference::Dense dense = reference::oracle(problem, arguments());
    out = dense.out;
    lse = dense.lse;
  }
  reference::DenseGradients gradients() const {
    return reference::oracle_backward(problem, arguments(), tensor(d_out, problem.seq_q, problem.dim_v));
  }
  reference::DenseTangents tangent_results() const { return reference::oracle_tangents(problem, arguments()); }
  reference::DenseGradients second_derivatives() const {
    Problem p = problem;
    p.tdout = true;
    return reference::oracle_double_backward(p, arguments());
  }
  static ConstTensor tensor(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
    return ConstTensor(x.data(), DType::f32, {1, 1, rows, cols});
  }
  Tensors arguments() const {
    Tensors a;
    a.q = tensor(q, problem.seq_q, problem.dim_qk);
    a.k = tensor(k, problem.seq_k, problem.dim_qk);
    a.v = tensor(v, problem.seq_k, problem.dim_v);
    a.tq = tensor(tq, problem.seq_q, problem.dim_qk);
    a.tk = tensor(tk, problem.seq_k, problem.dim_qk);
    a.tv = tensor(tv, problem.seq_k, problem.dim_v);
    a.dout = tensor(d_out, problem.seq_q, problem.dim_v);
    a.tdout = tensor(td_out, problem.seq_q, problem.dim_v);
    return a;
  }

  template <class T>
  static Slow<T> slow(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
    Slow<T> s(rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i) s.outside()[i] = T(x[i]);
    return s;
  }
  template <class T>
  Head<T> head() const {
    return {slow<T>(q, problem.seq_q, problem.dim_qk), slow<T>(k, problem.seq_k, problem.dim_qk),
            slow<T>(v, problem.seq_k, problem.dim_v), band_mask(problem, problem.seq_q, problem.seq_k),
            Dropout::of(problem.dropout_p, problem.seed)};
  }
  template <class T>
  Slow<T> grad_out() const {
    return slow<T>(d_out, problem.seq_q, problem.dim_v);
  }
  template <class T>
  Slow<T> tangent_of_grad_out() const {
    return slow<T>(td_out, problem.seq_q, problem.dim_v);
  }
  template <class T>
  Tangents<T> tangents() const {
    return {slow<T>(tq, problem.seq_q, problem.dim_qk), slow<T>(tk, problem.seq_k, problem.dim_qk),
            slow<T>(tv, problem.seq_k, problem.dim_v)};
  }
};

// max |x - reference| / max(1, max |reference|); infinities must stand in the same places.
template <class T>
double error_of(const std::vector<T>& x, const std::vector<double>& reference) {
  if (x.size() != reference.size()) return INFINITY;
  double worst = 0, size = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double got = number(x[i]);
    if (got == reference[i]) continue;
    if (!std::isfinite(got) || !std::isfinite(reference[i])) return INFINITY;
    worst = std::max(worst, std::abs(got - reference[i]));
    size = std::max(size, std::abs(reference[i]));
  }
  return worst / size;
}

}  // namespace onepass::ladder
