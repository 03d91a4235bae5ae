// The rule of docs/reference/conventions.md for a flat GEMM.
#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/tally.hpp"
#include "check/verdict/verdict.hpp"

namespace onepass::check {

Verdict judge_flat_gemm(const Inputs& in, const reference::Dense& oracle, const reference::Dense& base) {
  const Problem& p = in.problem;
  const Tensor& y = in.tensors.y;
  // Tensor cores truncate each of their steps of 16. The sum's own roundings matter beside base's where sums are few.
  const double k = static_cast<double>(p.k), unsure = rounding_unit(DType::f32) * (4 + k / 64);
  const double any_order = unsure + sum_error(k);
  Verdict v;
  std::string violation, worst;
  const auto first = [&](const std::string& sentence) {
    if (violation.empty()) violation = sentence;
  };
  Tally tally;
  double rounding = 0, most_terms = 0, sum_terms = 0;
  for (std::int64_t i = 0; i < p.m * p.n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float got = load_element(y.data, y.dtype, i / p.n * y.stride[0] + i % p.n * y.stride[1]);
    const double ref = oracle.out[at];
    const float rounded = with_float_type(
        y.dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(static_cast<float>(ref))); });
    const auto here = [&] { return text("y[", i / p.n, ", ", i % p.n, "] is ", got, " but the reference is ", ref); };
    if (std::isfinite(got) != std::isfinite(rounded)) first(here());
    if (!std::isfinite(got) || !std::isfinite(rounded)) continue;
    const double bound = any_order * oracle.top[at];
    most_terms = std::max(most_terms, oracle.top[at]);
    sum_terms += oracle.top[at];
    if (tally.add(std::abs(double{got} - ref), std::abs(base.out[at] - ref), std::abs(ref), bound,
                  half_ulp(y.dtype, std::abs(ref) + bound)))
      worst = here();
    tally.close(ref);
    rounding = std::max(rounding, rounding_unit(y.dtype) * std::abs(ref));
  }
  tally.conclude(v, 2, 2 * rounding + unsure * most_terms, 1.5,
                 rounding_unit(y.dtype) * tally.mean_size() + unsure * sum_terms / tally.count());
  return concluded(v, worst, std::move(violation), in);
}

}  // namespace onepass::check
