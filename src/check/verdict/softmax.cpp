// The rule of docs/reference/conventions.md for a softmax over rows and its backward.
#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/verdict.hpp"
#include "problem/softmax/softmax_problem.hpp"
#include "reference/softmax.hpp"

namespace onepass::check {
namespace {

constexpr double kUnit = rounding_unit(DType::f32);

class SoftmaxJudge {
 public:
  SoftmaxJudge(const Inputs& in, const reference::Dense& oracle, const reference::Dense& base)
      : in_(in), p_(in.problem), oracle_(oracle), base_(base) {}

  Verdict judge() {
    for (std::int64_t r = 0; r < p_.batch * p_.heads_q * p_.seq_q; ++r) {
      const std::vector<double> unsure = p_.op == Op::softmax ? unsure_forward(r) : unsure_backward(r);
      if (p_.op == Op::softmax_backward)
        row(r, "dx", in_.tensors.dx, p_.layout.dx, unsure);
      else if (!p_.lse_only)
        row(r, "y", in_.tensors.y, p_.layout.y, unsure);
      if (p_.want_lse) lse(r);
    }
    return conclude();
  }

 private:
  // What fp32 cannot know of each number, as a share of itself: a score to u t, t = |scale x|, the LSE too (rows close
  // to one-hot hardly feel their scores); sums and products 4 u. Of a logarithm both are absolute.
  std::vector<double> unsure_forward(std::int64_t r) {
    const std::vector<double> x = reference::visible_row(p_, in_.tensors, r);
    terms_ = 0;
    for (const double v : x)
      if (std::isfinite(v)) terms_ = std::max(terms_, std::abs(p_.effective_scale() * v));
    double all = terms_;
    if (p_.row_lse && std::isfinite(oracle_.lse[static_cast<std::size_t>(r)]))
      all += std::abs(oracle_.lse[static_cast<std::size_t>(r)]);
    std::vector<double> unsure(x.size());
    const double* const refs = oracle_.out.data() + static_cast<std::size_t>(r) * x.size();
    double top = 0;
    for (std::size_t j = 0; j < x.size(); ++j) top = std::max(top, p_.log ? std::exp(refs[j]) : refs[j]);
    const double felt = p_.row_lse ? 1 : std::min(1.0, 2 * (1 - top));
    for (std::size_t j = 0; j < x.size(); ++j) {
      if (!std::isfinite(refs[j])) continue;
      unsure[j] = p_.log ? kUnit * (2 * all + 4 * std::abs(refs[j]))
                         : (std::min(1.0, 2 * kUnit * all) * felt + 4 * kUnit) * refs[j];
    }
    return unsure;
  }
  // Of the sizes of a number's terms; e^y of a logarithm is known to u |y|.
  std::vector<double> unsure_backward(std::int64_t r) {
    const auto n = static_cast<std::size_t>(p_.seq_k);
    const std::int64_t y_at = reference::row_at(p_, p_.layout.y, r), dy_at = reference::row_at(p_, p_.layout.dy, r);
    std::vector<double> y(n), dy(n), unsure(n);
    double sum = 0, most = 0;
    const double hidden = p_.log ? -INFINITY : 0.0;
    for (std::size_t j = 0; j < n; ++j) {
      const auto at = static_cast<std::int64_t>(j);
      y[j] = double{load_element(in_.tensors.y.data, p_.out_dtype, y_at + at * p_.layout.y[3])};
      dy[j] = double{load_element(in_.tensors.dy.data, p_.out_dtype, dy_at + at * p_.layout.dy[3])};
      if (y[j] == hidden) continue;
      sum += std::abs(p_.log ? dy[j] : dy[j] * y[j]);
      if (p_.log && std::isfinite(y[j])) most = std::max(most, std::abs(y[j]));
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double terms = p_.log ? std::abs(dy[j]) + std::exp(y[j]) * sum : y[j] * (std::abs(dy[j]) + sum);
      if (y[j] != hidden && std::isfinite(terms))
        unsure[j] = kUnit * (2 * most + 16) * std::abs(p_.effective_scale()) * terms;
    }
    return unsure;
  }

  void row(std::int64_t r, const char* name, const Tensor& t, const Dims& stride, const std::vector<double>& unsure) {
    const std::int64_t from = reference::row_at(p_, stride, r);
    for (std::size_t j = 0; j < unsure.size(); ++j) {
      const float x = load_element(t.data, t.dtype, from + static_cast<std::int64_t>(j) * stride[3]);
      const double ref = oracle_.out[static_cast<std::size_t>(r) * unsure.size() + j],
                   other = base_.out[static_cast<std::size_t>(r) * unsure.size() + j];
      const float rounded = with_float_type(
          t.dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(static_cast<float>(ref))); });
      const auto here = [&] { return text(name, "[", r, ", ", j, "] is ", x, " but the reference is ", ref); };
      const bool kept = p_.op == Op::softmax_backward ? std::isfinite(x) == std::isfinite(rounded)
                        : std::isnan(rounded)         ? std::isnan(x)
                        : std::isinf(rounded)         ? x == rounded
                                                      : std::isfinite(x);
      if (!kept || (ref == 0 && x != 0 && (p_.op == Op::softmax || unsure[j] == 0))) first(here());
      if (!std::isfinite(x) || !std::isfinite(rounded)) continue;
      const double error = std::abs(double{x} - ref);
      if (error > v_.max_error) worst_ = here();
      v_.max_error = std::max(v_.max_error, error);
      sum_error_ += error;
      if (std::isfinite(other)) {
        v_.max_base = std::max(v_.max_base, std::abs(other - ref));
        sum_base_ += std::abs(other - ref);
      }
      rounding_ = std::max(rounding_, rounding_unit(t.dtype) * std::abs(ref));
      max_unsure_ = std::max(max_unsure_, unsure[j]);
      sum_unsure_ += unsure[j];
      sum_ref_ += std::abs(ref);
      ++count_;
    }
  }

  void lse(std::int64_t r) {
    const float x = static_cast<const float*>(in_.tensors.lse.data)[reference::row_at(p_, p_.layout.lse, r)];
    const double ref = oracle_.lse[static_cast<std::size_t>(r)];
    const auto here = [&] { return text("lse[", r, "] is ", x, " but the reference is ", ref); };
    if (!same_kind(x, static_cast<float>(ref))) return first(here());
    if (!std::isfinite(x)) return;
    const double error = std::abs(double{x} - ref) / (1e-5 + 1e-6 * std::abs(ref) + 2 * kUnit * terms_);
    if (error > 1) first(here() + text(": ", error, " times its bound"));
    v_.lse_error = std::max(v_.lse_error, error);
  }

  Verdict conclude() {
    const double n = std::max<double>(1, static_cast<double>(count_));
    const DType stored = p_.op == Op::softmax ? p_.out_dtype : p_.dtype;
    v_.max_allowed = 2 * v_.max_base + 2 * rounding_ + max_unsure_;
    v_.mean_error = sum_error_ / n;
    v_.mean_base = sum_base_ / n;
    v_.mean_allowed = 1.5 * v_.mean_base + rounding_unit(stored) * sum_ref_ / n + sum_unsure_ / n;
    return concluded(v_, worst_, std::move(violation_), in_);
  }

  void first(const std::string& sentence) {
    if (violation_.empty()) violation_ = sentence;
  }

  const Inputs& in_;
  const Problem& p_;
  const reference::Dense &oracle_, &base_;
  Verdict v_;
  std::string violation_, worst_;
  double sum_error_ = 0, sum_base_ = 0, sum_ref_ = 0, rounding_ = 0, max_unsure_ = 0, sum_unsure_ = 0;
  double terms_ = 0;  // of the row being judged: its largest score
  std::int64_t count_ = 0;
};

}  // namespace

Verdict judge_softmax(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base) {
  return SoftmaxJudge(inputs, oracle, base).judge();
}

}  // namespace onepass::check
