// The rule of docs/reference/conventions.md for gradients.
#include <algorithm>
#include <cmath>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/sums.hpp"
#include "check/verdict/tally.hpp"
#include "check/verdict/verdict.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::check {

double score_terms(const Inputs& in) {
  const Problem& p = in.problem;
  const auto longest = [&](const ConstTensor& t, std::int64_t heads, bool of_keys) {
    double most = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, in.tensors, b);
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < (of_keys ? seq.seq_k : seq.seq_q); ++i) {
          const std::int64_t at = row_offset(t, seq.batch, h, (of_keys ? seq.k_begin : seq.q_begin) + i);
          double sum = 0;
          for (std::int64_t d = 0; d < p.dim_qk; ++d) {
            const auto x = static_cast<double>(load_element(t.data, t.dtype, at + d));
            sum += std::isfinite(x) ? x * x : 0;
          }
          most = std::max(most, std::sqrt(sum));
        }
      }
    }
    return most;
  };
  return std::abs(p.effective_scale()) * longest(in.tensors.q, p.heads_q, false) *
         longest(in.tensors.k, p.heads_kv, true);
}

double gradient_error(const Problem& p, double t, DeviceKind computed_on) {
  // A tensor core truncates each sum of a chain, by u of it in the mean. cuda.sm80_backward's chains of fp32 have four
  // sums at d = 64 and eight beyond d = 128, which grow evenly to the whole.
  const auto sums = static_cast<double>(std::min<std::int64_t>(p.dim_qk, 128)) / 16;
  const double truncated = computed_on == DeviceKind::cuda ? (sums + 1) / 2 : 0;
  return rounding_unit(DType::f32) * ((2 + truncated) * t + (p.softcap > 0 ? 2 * t / double{p.softcap} : 0) + 16);
}

namespace {

class GradientJudge {
 public:
  GradientJudge(const Inputs& in, const reference::DenseGradients& oracle, const reference::DenseGradients& base,
                DeviceKind computed_on, const reference::DenseGradients& exact)
      : in_(in),
        oracle_(oracle),
        base_(base),
        exact_(exact),
        unsure_(gradient_error(in.problem, score_terms(in), computed_on)) {
    if (in.problem.op->tangents)  // the products in tS and tdP
      unsure_ += 2 * std::sqrt(static_cast<double>(in.problem.dim_qk + in.problem.dim_v)) * rounding_unit(DType::f32);
  }

  Verdict judge() {
    Verdict worst;
    std::string violation, figures;
    for (const RoleRow& row : kRoleTable) {
      if (!writes(row, in_.problem.op) || !uses(in_.problem, row)) continue;
      const Verdict v = gradient(row, violation);
      figures += text(figures.empty() ? "" : "; ", row.name, " ", v.max_error, " of ", v.max_allowed);
      if (v.compared ? v.max_error * worst.max_allowed >= worst.max_error * v.max_allowed : worst.max_allowed == 0)
        worst = v;
    }
    if (violation.empty()) violation = in_.touched();
    worst.right = violation.empty();
    worst.sentence = worst.right ? "max errors of allowed: " + figures : violation;
    return worst;
  }

 private:
  Verdict gradient(const RoleRow& row, std::string& violation) const {
    return judge_sums(
        in_, row, oracle_.of(row.role), base_.of(row.role), exact_.of(row.role), unsure_,
        [&](const Look& look) { reference::each_number(in_.problem, in_.tensors, row, in_.tensors.*row.output, look); },
        violation);
  }

  const Inputs& in_;
  const reference::DenseGradients &oracle_, &base_, &exact_;
  double unsure_;
};

}  // namespace

Verdict judge_sums(const Inputs& in, const RoleRow& row, const reference::DenseGradient& oracle,
                   const reference::DenseGradient& base, const reference::DenseGradient& exact, double unsure,
                   const std::function<void(const Look&)>& each, std::string& violation) {
  const Tensor& t = in.tensors.*row.output;
  Verdict v;
  Tally tally;
  double rounding = 0, most_terms = 0, sum_terms = 0;
  const double stored = weights_error(in.problem);
  const std::int64_t group = row.unit_last ? t.shape[t.rank - 1] : 1;
  std::string worst;
  const auto look = [&](std::int64_t offset, std::int64_t at) {
    const float x = load_element(t.data, t.dtype, offset);
    const double ref = oracle.value[at];
    const float r = with_float_type(
        t.dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(static_cast<float>(ref))); });
    const auto here = [&] { return text(row.name, "[", at, "] is ", x, " but the reference is ", ref); };
    if (std::isfinite(r) != std::isfinite(x) && violation.empty()) violation = here();
    if (ref == 0 && oracle.terms[at] == 0 && x != 0 && violation.empty())
      violation = here() + ": nothing contributes to it";
    if (!std::isfinite(r) || !std::isfinite(x)) return;
    const double terms = std::isfinite(oracle.terms[at]) ? oracle.terms[at] : 0;
    const double squares = oracle.stored_squares.empty() ? 0 : oracle.stored_squares[at];
    const double bound = unsure * terms + stored * (std::isfinite(squares) ? std::sqrt(squares) : 0);
    most_terms = std::max(most_terms, terms);
    sum_terms += terms;
    if (tally.add(nearest(static_cast<double>(x), ref, exact.value[at]), std::abs(base.value[at] - ref), std::abs(ref),
                  bound, half_ulp(t.dtype, std::abs(ref) + bound) + kFlushed))
      worst = here();
    rounding = std::max(rounding, rounding_unit(t.dtype) * std::abs(ref));
    if ((at + 1) % group == 0) tally.close(ref);
  };
  each(look);
  tally.conclude(v, 3, 2 * rounding + unsure * most_terms, 2,
                 rounding_unit(t.dtype) * tally.mean_size() + unsure * sum_terms / tally.count());
  if (v.max_error > v.max_allowed && violation.empty())
    violation = text(worst, ": off by ", v.max_error, ", allowed ", v.max_allowed, " (base ", v.max_base, ")");
  if (v.mean_error > v.mean_allowed && violation.empty())
    violation = text("the mean error of ", row.name, " is ", v.mean_error, ", allowed ", v.mean_allowed, " (base ",
                     v.mean_base, ")");
  return v;
}

Verdict judge(const Inputs& inputs, const reference::DenseGradients& oracle, const reference::DenseGradients& base,
              DeviceKind computed_on, const reference::DenseGradients* exact) {
  return GradientJudge(inputs, oracle, base, computed_on, exact ? *exact : oracle).judge();
}

}  // namespace onepass::check
