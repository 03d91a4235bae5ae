// The rule of docs/reference/conventions.md for a softmax over rows and its backward.
#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/tally.hpp"
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
      const std::vector<Unsure> unsure = !is_backward(p_.op) ? unsure_forward(r) : unsure_backward(r);
      if (is_backward(p_.op))
        row(r, "dx", in_.tensors.dx, p_.layout.dx, unsure);
      else if (!p_.lse_only)
        row(r, "y", in_.tensors.y, p_.layout.y, unsure);
      if (p_.want_lse) lse(r);
    }
    return conclude();
  }

 private:
  // Errors of one element. `usual` is added to those of base: a score is known to u |scale x|, and so is the LSE (in
  // rows close to one-hot both matter little); sums and products are known to 4 u. `bound` is the largest error before
  // the element is stored: scores to 4 u |scale x|, sums as in tally.hpp. For a logarithm these errors are absolute.
  struct Unsure {
    double usual = 0, bound = 0;
  };
  std::vector<Unsure> unsure_forward(std::int64_t r) {
    const std::vector<double> x = reference::visible_row(p_, in_.tensors, r);
    terms_ = 0;
    for (const double v : x)
      if (std::isfinite(v)) terms_ = std::max(terms_, std::abs(p_.effective_scale() * v));
    double all = terms_;
    if (p_.row_lse && std::isfinite(oracle_.lse[static_cast<std::size_t>(r)]))
      all += std::abs(oracle_.lse[static_cast<std::size_t>(r)]);
    std::vector<Unsure> unsure(x.size());
    const double* const refs = oracle_.out.data() + static_cast<std::size_t>(r) * x.size();
    double top = 0;
    for (std::size_t j = 0; j < x.size(); ++j) top = std::max(top, p_.log ? std::exp(refs[j]) : refs[j]);
    const double felt = p_.row_lse ? 1 : std::min(1.0, 2 * (1 - top));
    const double sums = sum_error(static_cast<double>(x.size()));
    for (std::size_t j = 0; j < x.size(); ++j) {
      if (!std::isfinite(refs[j])) continue;
      if (p_.log) {
        const double usual = kUnit * (2 * all + 4 * std::abs(refs[j]));
        unsure[j] = {usual, usual + sums};
      } else {
        unsure[j] = {(std::min(1.0, 2 * kUnit * all) * felt + 4 * kUnit) * refs[j],
                     (std::min(1.0, 8 * kUnit * all) * felt + sums) * refs[j]};
      }
    }
    return unsure;
  }
  // The same for the backward, as a share of the sizes of an element's terms. For a logarithm e^y is known to u |y|.
  std::vector<Unsure> unsure_backward(std::int64_t r) {
    const auto n = static_cast<std::size_t>(p_.seq_k);
    const std::int64_t y_at = reference::row_at(p_, p_.layout.y, r), dy_at = reference::row_at(p_, p_.layout.dy, r);
    std::vector<double> y(n), dy(n);
    std::vector<Unsure> unsure(n);
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
      const double terms = std::abs(p_.effective_scale()) *
                           (p_.log ? std::abs(dy[j]) + std::exp(y[j]) * sum : y[j] * (std::abs(dy[j]) + sum));
      const double usual = kUnit * (2 * most + 16);
      if (y[j] != hidden && std::isfinite(terms))
        unsure[j] = {usual * terms, (usual + sum_error(static_cast<double>(n))) * terms};
    }
    return unsure;
  }

  void row(std::int64_t r, const char* name, const Tensor& t, const Dims& stride, const std::vector<Unsure>& unsure) {
    const std::int64_t from = reference::row_at(p_, stride, r);
    for (std::size_t j = 0; j < unsure.size(); ++j) {
      const float x = load_element(t.data, t.dtype, from + static_cast<std::int64_t>(j) * stride[3]);
      const double ref = oracle_.out[static_cast<std::size_t>(r) * unsure.size() + j],
                   other = base_.out[static_cast<std::size_t>(r) * unsure.size() + j];
      const float rounded = with_float_type(
          t.dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(static_cast<float>(ref))); });
      const auto here = [&] { return text(name, "[", r, ", ", j, "] is ", x, " but the reference is ", ref); };
      const bool kept = is_backward(p_.op)    ? std::isfinite(x) == std::isfinite(rounded)
                        : std::isnan(rounded) ? std::isnan(x)
                        : std::isinf(rounded) ? x == rounded
                                              : std::isfinite(x);
      if (!kept || (ref == 0 && x != 0 && (!is_backward(p_.op) || unsure[j].bound == 0))) first(here());
      if (!std::isfinite(x) || !std::isfinite(rounded)) continue;
      if (tally_.add(std::abs(double{x} - ref), std::abs(other - ref), std::abs(ref), unsure[j].bound,
                     half_ulp(t.dtype, std::abs(ref) + unsure[j].bound)))
        worst_ = here();
      max_unsure_ = std::max(max_unsure_, unsure[j].usual);
      sum_unsure_ += unsure[j].usual;
      rounding_ = std::max(rounding_, rounding_unit(t.dtype) * std::abs(ref));
    }
    if (!unsure.empty()) tally_.close(oracle_.out[static_cast<std::size_t>(r) * unsure.size()]);
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
    const DType stored = !is_backward(p_.op) ? p_.out_dtype : p_.dtype;
    tally_.conclude(v_, 2, 2 * rounding_ + max_unsure_, 1.5,
                    rounding_unit(stored) * tally_.mean_size() + sum_unsure_ / tally_.count());
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
  Tally tally_;
  double rounding_ = 0, max_unsure_ = 0, sum_unsure_ = 0;
  double terms_ = 0;  // largest score of the row being judged
};

}  // namespace

Verdict judge_softmax(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base) {
  return SoftmaxJudge(inputs, oracle, base).judge();
}

}  // namespace onepass::check
