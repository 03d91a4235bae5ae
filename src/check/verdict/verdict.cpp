#include "check/verdict/verdict.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/tally.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass::check {
namespace {

constexpr double kUnit = rounding_unit(DType::f32);
// Hopper's product of fp8_e4m3 aligns 32 terms and the sum to the largest and keeps 13 bits behind its leading one.
constexpr double kFp8Unit = 0x1p-13;
double product_unit(const Problem& p) { return p.dtype == DType::f8e4m3 ? kFp8Unit : kUnit; }
// The part of O that these products can lose.
double shortfall(const Problem& p) {
  if (p.dtype != DType::f8e4m3) return 0;
  return p.accumulation == Accumulation::exact ? 0.005 : std::min(0.25, 2e-5 * static_cast<double>(p.seq_k) + 0.005);
}

class Judge {
 public:
  Judge(const Inputs& in, const reference::Dense& oracle, const reference::Dense& base, DeviceKind computed_on,
        const reference::Dense& exact)
      : in_(in), oracle_(oracle), base_(base), exact_(exact), computed_on_(computed_on) {}

  Verdict judge() {
    const Problem& p = in_.problem;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, in_.tensors, b);
      const Range seen = band_mask(p, seq.seq_q, seq.seq_k).key_range(0, seq.seq_q);
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        double longest = 0;
        const KeyValueView keys = keys_of(in_.tensors, seq);
        const Descale of_q(in_.tensors.q_descale, b);
        for (std::int64_t j = seen.lo; j < seen.hi; ++j)
          longest = std::max(
              longest, std::abs(double{keys.factor(h / p.group(), j)}) * length(keys.dtype(), p.dim_qk, [&](auto zero) {
                         return keys.row<decltype(zero)>(h / p.group(), j);
                       }));
        for (std::int64_t i = 0; i < seq.seq_q; ++i) {
          if (!p.op->parts)  // has no q and k
            terms_ =
                std::abs(p.effective_scale() * of_q.at(h, i)) * longest * length(p.dtype, p.dim_qk, [&](auto zero) {
                  const ConstTensor& q = in_.tensors.q;
                  return static_cast<const decltype(zero)*>(q.data) + row_offset(q, seq.batch, h, seq.q_begin + i);
                });
          with_float_type(p.out_dtype, [&](auto zero) { row<decltype(zero)>(seq, b, h, i); });
          if (p.want_lse) lse(seq, b, h, i);
          if (p.want_row_max) row_max(seq, b, h, i);
          if (p.entropy) entropy(seq, b, h, i);
          if (p.want_recomputed) recomputed(seq, b, h, i);
        }
      }
    }
    return conclude();
  }

 private:
  // The length of a row of q or k without its elements that are not finite.
  template <class Row>
  static double length(DType dtype, std::int64_t dim, Row row_of_type) {
    double sum = 0;
    with_float_type(dtype, [&](auto zero) {
      const auto* x = row_of_type(zero);
      for (std::int64_t d = 0; d < dim; ++d) {
        const double value = to_float(x[d]);
        sum += std::isfinite(value) ? value * value : 0;
      }
    });
    return std::sqrt(sum);
  }

  template <class T>
  void row(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Problem& p = in_.problem;
    const T* out =
        static_cast<const T*>(in_.tensors.out.data) + row_offset(in_.tensors.out, seq.batch, h, seq.q_begin + i);
    const std::int64_t at = reference::dense_out_index(p, seq, h, i);
    const std::int64_t at_row = reference::dense_lse_index(p, seq, h, i);
    const bool empty = oracle_.top[at_row] == 0;  // a sink it may have
    const Allowance allowed = allowance(seq, i, at_row);
    double largest = 0;
    for (std::int64_t d = 0; d < p.dim_v; ++d) {
      const float x = to_float(out[d]);
      const double ref = oracle_.out[at + d];
      const float r = to_float(from_float<T>(static_cast<float>(ref)));
      const auto here = [&] {
        return text("out[", b, ", ", h, ", ", i, ", ", d, "] is ", x, " but the reference is ", ref);
      };
      if (!same_kind(x, r))
        first(here());
      else if (empty && x != 0)
        first(here() + ": the row is empty");
      if (!std::isfinite(r) || !std::isfinite(x)) continue;
      const double least = ref * ref, square = std::isfinite(oracle_.square[at + d]) ? oracle_.square[at + d] : least;
      const double spread = std::sqrt(std::max(0.0, square - least));
      const double bound = allowed.scores * spread + allowed.sums * std::sqrt(square) + shortfall(p) * std::abs(ref);
      largest = std::max(largest, std::abs(ref));
      if (tally_.add(nearest(double{x}, ref, exact_.out[at + d]), std::abs(base_.out[at + d] - ref), std::abs(ref),
                     bound, half_ulp(p.out_dtype, std::abs(ref) + bound)))
        worst_ = here();
      const auto rounded = [](float y) { return to_float(from_float<T>(y)); };
      rounding_ = std::max(rounding_, std::abs(double{rounded(rounded(r + 0.3f) - 0.3f)} - double{r}));
    }
    tally_.close(p.dim_v > 0 ? oracle_.out[at] : 0);
    const double top = oracle_.top[at_row];
    const double unsure =
        (top < 1 && std::isfinite(top) ? product_unit(p) * 2 * terms_ * std::min(1.0, 2 * (1 - top)) : 0) +
        4 * kUnit * largest;
    max_unsure_ = std::max(max_unsure_, unsure + shortfall(p) * largest);
    sum_unsure_ += unsure * unsure;
    ++rows_;
  }

  // The sum of a score's products loses this, in units of its terms. A tensor core truncates d / 16 sums by 2 u each;
  // an fp8 product truncates each of its terms as well.
  double sum_steps(const Problem& p) const {
    const bool truncates = computed_on_ == DeviceKind::cuda || p.dtype == DType::f8e4m3;
    return static_cast<double>(p.dim_qk) / (truncates ? 8 : p.dim_qk <= 256 ? 64 : 12);
  }

  // Shares of an element's bound: of the spread of the values under the row's weights, and of their root mean square.
  struct Allowance {
    double scores, sums;
  };
  Allowance allowance(const Sequence& seq, std::int64_t i, std::int64_t at_row) const {
    const Problem& p = in_.problem;
    const double top = oracle_.top[at_row];
    if (p.op->parts)  // its scores are LSEs: parts that lie farther below the largest have no weight
      return {4 * kUnit * 17, sum_error(static_cast<double>(p.partials))};
    const Range seen = band_mask(p, seq.seq_q, seq.seq_k).keys_of(i);
    const double largest = oracle_.lse[at_row] + std::log(top);  // score
    double terms = terms_ + double{p.softcap};
    if (std::isfinite(largest)) terms += std::abs(largest);
    const double units = p.dtype == DType::f8e4m3 ? 2 : 4 + sum_steps(p);
    return {top < 1 && std::isfinite(top) ? units * product_unit(p) * terms : 0,
            sum_error(static_cast<double>(std::max<std::int64_t>(0, seen.hi - seen.lo))) +
                weights_error(p) * std::min(1 / 3.5, std::sqrt(top))};
  }

  void lse(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const float x =
        static_cast<const float*>(in_.tensors.lse.data)[lse_offset(in_.tensors.lse, seq.batch, h, seq.q_begin + i)];
    const auto at = static_cast<std::size_t>(reference::dense_lse_index(in_.problem, seq, h, i));
    const double ref = oracle_.lse[at];
    const auto here = [&] { return text("lse[", b, ", ", h, ", ", i, "] is ", x, " but the reference is ", ref); };
    if (ref == -INFINITY ? x != -INFINITY : !same_kind(x, static_cast<float>(ref))) return first(here());
    if (!std::isfinite(x)) return;
    const double unsure = (2 + sum_steps(in_.problem)) * product_unit(in_.problem) * terms_;
    const double error = nearest(double{x}, ref, exact_.lse[at]) / (1e-5 + 1e-6 * std::abs(ref) + unsure);
    if (error > 1) first(here() + text(": ", error, " times its bound"));
    v_.lse_error = std::max(v_.lse_error, error);
  }

  void row_max(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Problem& p = in_.problem;
    const Tensor& t = in_.tensors.row_max;
    const float x = static_cast<const float*>(t.data)[lse_offset(t, seq.batch, h, seq.q_begin + i)];
    const auto at = static_cast<std::size_t>(reference::dense_lse_index(p, seq, h, i));
    const double ref = oracle_.most[at];
    const auto here = [&] { return text("row_max[", b, ", ", h, ", ", i, "] is ", x, " but the reference is ", ref); };
    if (ref == -INFINITY ? x != -INFINITY : !same_kind(x, static_cast<float>(ref))) return first(here());
    if (!std::isfinite(x)) return;
    const double products = (2 + sum_steps(p)) * product_unit(p) * terms_, steps = 8 * kUnit * (terms_ + std::abs(ref)),
                 functions = p.softcap > 0 || !p.score_mod.empty() ? 1e-5 + 1e-6 * std::abs(ref) : 0;
    const double error = nearest(double{x}, ref, exact_.most[at]), bound = products + steps + functions;
    if (error > bound) first(here() + text(": ", error / bound, " times its bound"));
  }

  void entropy(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Problem& p = in_.problem;
    const Tensor& t = in_.tensors.entropy;
    const float x = static_cast<const float*>(t.data)[lse_offset(t, seq.batch, h, seq.q_begin + i)];
    const auto at = static_cast<std::size_t>(reference::dense_lse_index(p, seq, h, i));
    const double ref = oracle_.entropy[at], spread = oracle_.entropy_spread[at];
    const auto here = [&] { return text("entropy[", b, ", ", h, ", ", i, "] is ", x, " but the reference is ", ref); };
    const bool empty = oracle_.lse[at] == -INFINITY;
    if (empty ? x != 0 : !same_kind(x, static_cast<float>(ref))) return first(here());
    if (empty || !std::isfinite(x)) return;
    const Range seen = band_mask(p, seq.seq_q, seq.seq_k).keys_of(i);
    const auto keys = static_cast<double>(std::max<std::int64_t>(0, seen.hi - seen.lo));
    const double largest = oracle_.lse[at] + std::log(oracle_.top[at]);  // score
    const double size = terms_ + (std::isfinite(largest) ? std::abs(largest) : 0);
    const double score = (2 + sum_steps(p)) * product_unit(p) * terms_ + 8 * kUnit * size +
                         (p.softcap > 0 || !p.score_mod.empty() ? 1e-5 + 1e-6 * size : 0);
    const double scores = std::min(std::log(keys + 1), std::exp(score) * score * (spread + score));
    const double bound = scores + (1e-6 + sum_error(keys)) * (1 + ref + spread);
    const double error = nearest(double{x}, ref, exact_.entropy[at]);
    if (error > bound) first(here() + text(": ", error / bound, " times its bound"));
    if (x < 0) first(here() + ": it is negative");
  }

  void recomputed(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Tensor& t = in_.tensors.recomputed;
    const std::int32_t x = static_cast<const std::int32_t*>(t.data)[lse_offset(t, seq.batch, h, seq.q_begin + i)];
    const std::int64_t at = reference::dense_lse_index(in_.problem, seq, h, i);
    const double lse = oracle_.lse[at], largest = lse + std::log(oracle_.top[at]);  // score
    const bool empty = std::isinf(lse) && lse < 0;
    const bool left = oracle_.top[at] > 0 && std::abs(largest - double{*in_.problem.unified_max}) >
                                                 double{kUnifiedRange} + 1 + 4 * kUnit * terms_;
    if (x < 0 || x > 1 || (x == 0 && left) || (x == 1 && empty))
      first(text("recomputed[", b, ", ", h, ", ", i, "] is ", x, " but the row",
                 empty ? text(" sees no key") : text("'s largest score is ", largest)));
  }

  Verdict conclude() {
    const Problem& p = in_.problem;
    tally_.conclude(v_, p.softcap > 0 ? 3 : 2, 2 * rounding_ + max_unsure_, 1.5,
                    (rounding_unit(p.out_dtype) + shortfall(p)) * tally_.mean_size() +
                        std::sqrt(sum_unsure_) / static_cast<double>(std::max<std::int64_t>(1, rows_)));
    return concluded(v_, worst_, std::move(violation_), in_);
  }

  void first(const std::string& sentence) {
    if (violation_.empty()) violation_ = sentence;
  }

  const Inputs& in_;
  const reference::Dense &oracle_, &base_, &exact_;
  DeviceKind computed_on_;
  Verdict v_;
  std::string violation_, worst_;
  Tally tally_;
  double rounding_ = 0, max_unsure_ = 0, sum_unsure_ = 0;
  std::int64_t rows_ = 0;
  double terms_ = 0;  // t of the row being judged
};

}  // namespace

bool same_kind(float x, float r) { return std::isfinite(r) ? std::isfinite(x) : std::isnan(x) || x == r; }

Verdict concluded(Verdict v, const std::string& worst, std::string violation, const Inputs& inputs) {
  const auto first = [&](const std::string& sentence) {
    if (violation.empty()) violation = sentence;
  };
  if (v.max_error > v.max_allowed)
    first(text(worst, ": off by ", v.max_error, ", allowed ", v.max_allowed, " (base ", v.max_base, ")"));
  if (v.mean_error > v.mean_allowed)
    first(text("the mean error is ", v.mean_error, ", allowed ", v.mean_allowed, " (base ", v.mean_base, ")"));
  first(inputs.touched());
  v.right = violation.empty();
  v.sentence = v.right ? text("max error ", v.max_error, ", allowed ", v.max_allowed, " (base ", v.max_base, "); mean ",
                              v.mean_error, ", allowed ", v.mean_allowed, "; lse at ", v.lse_error, " of its bound")
                       : violation;
  return v;
}

Verdict judge(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base,
              DeviceKind computed_on, const reference::Dense* exact) {
  return Judge(inputs, oracle, base, computed_on, exact ? *exact : oracle).judge();
}

}  // namespace onepass::check
