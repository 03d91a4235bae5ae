// The rule of docs/reference/conventions.md for a flat GEMM.
#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/verdict.hpp"

namespace onepass::check {

Verdict judge_flat_gemm(const Inputs& in, const reference::Dense& oracle, const reference::Dense& base) {
  const Problem& p = in.problem;
  const Tensor& y = in.tensors.y;
  // A sum of k products is known to some u of its terms' sizes, whatever its order; tensor cores truncate each of their
  // steps of 16.
  const double unsure = rounding_unit(DType::f32) * (4 + static_cast<double>(p.k) / 64);
  Verdict v;
  std::string violation, worst;
  const auto first = [&](const std::string& sentence) {
    if (violation.empty()) violation = sentence;
  };
  double sum_error = 0, sum_base = 0, sum_ref = 0, sum_terms = 0, most_terms = 0, rounding = 0, n = 0;
  for (std::int64_t i = 0; i < p.m * p.n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float got = load_element(y.data, y.dtype, i / p.n * y.stride[0] + i % p.n * y.stride[1]);
    const double ref = oracle.out[at];
    const float rounded = with_float_type(
        y.dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(static_cast<float>(ref))); });
    const auto here = [&] { return text("y[", i / p.n, ", ", i % p.n, "] is ", got, " but the reference is ", ref); };
    if (std::isfinite(got) != std::isfinite(rounded)) first(here());
    if (!std::isfinite(got) || !std::isfinite(rounded)) continue;
    const double error = std::abs(double{got} - ref);
    if (error > v.max_error) worst = here();
    v.max_error = std::max(v.max_error, error);
    sum_error += error;
    if (std::isfinite(base.out[at])) {
      v.max_base = std::max(v.max_base, std::abs(base.out[at] - ref));
      sum_base += std::abs(base.out[at] - ref);
    }
    rounding = std::max(rounding, rounding_unit(y.dtype) * std::abs(ref));
    most_terms = std::max(most_terms, oracle.top[at]);
    sum_terms += oracle.top[at];
    sum_ref += std::abs(ref);
    ++n;
  }
  n = std::max(n, 1.0);
  v.max_allowed = 2 * v.max_base + 2 * rounding + unsure * most_terms;
  v.mean_error = sum_error / n;
  v.mean_base = sum_base / n;
  v.mean_allowed = 1.5 * v.mean_base + rounding_unit(y.dtype) * sum_ref / n + unsure * sum_terms / n;
  return concluded(v, worst, std::move(violation), in);
}

}  // namespace onepass::check
