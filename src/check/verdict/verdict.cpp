#include "check/verdict/verdict.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass::check {
namespace {

constexpr double kUnit = rounding_unit(DType::f32);
// Hopper's product of fp8_e4m3 aligns 32 terms and the sum to the largest and keeps 13 bits behind its leading one.
constexpr double kFp8Unit = 0x1p-13;
double product_unit(const Problem& p) { return p.dtype == DType::f8e4m3 ? kFp8Unit : kUnit; }
// What O may be short of by that, as a share of it.
double shortfall(const Problem& p) {
  if (p.dtype != DType::f8e4m3) return 0;
  return p.accumulation == Accumulation::exact ? 0.005 : std::min(0.25, 2e-5 * static_cast<double>(p.seq_k) + 0.005);
}

class Judge {
 public:
  Judge(const Inputs& in, const reference::Dense& oracle, const reference::Dense& base)
      : in_(in), oracle_(oracle), base_(base) {}

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
          if (p.op != Op::merge)  // whose terms are its inputs
            terms_ =
                std::abs(p.effective_scale() * of_q.at(h, i)) * longest * length(p.dtype, p.dim_qk, [&](auto zero) {
                  const ConstTensor& q = in_.tensors.q;
                  return static_cast<const decltype(zero)*>(q.data) + row_offset(q, seq.batch, h, seq.q_begin + i);
                });
          with_float_type(p.out_dtype, [&](auto zero) { row<decltype(zero)>(seq, b, h, i); });
          if (p.want_lse) lse(seq, b, h, i);
          if (p.want_recomputed) recomputed(seq, b, h, i);
        }
      }
    }
    return conclude();
  }

 private:
  // |x| of a row of q or k, leaving out what is not finite.
  template <class Row>
  static double length(DType dtype, std::int64_t dim, Row row_of_type) {
    float sum = 0;
    with_float_type(dtype, [&](auto zero) {
      const auto* x = row_of_type(zero);
      for (std::int64_t d = 0; d < dim; ++d) {
        const float value = to_float(x[d]);
        sum += std::isfinite(value) ? value * value : 0;
      }
    });
    return std::sqrt(static_cast<double>(sum));
  }

  template <class T>
  void row(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Problem& p = in_.problem;
    const T* out =
        static_cast<const T*>(in_.tensors.out.data) + row_offset(in_.tensors.out, seq.batch, h, seq.q_begin + i);
    const std::int64_t at = reference::dense_out_index(p, seq, h, i);
    const std::int64_t at_row = reference::dense_lse_index(p, seq, h, i);
    const bool empty = oracle_.top[at_row] == 0;  // a sink it may have
    double largest = 0;
    for (std::int64_t d = 0; d < p.dim_v; ++d) {
      const float x = to_float(out[d]);
      const double ref = oracle_.out[at + d], other = base_.out[at + d];
      const float r = to_float(from_float<T>(static_cast<float>(ref)));
      const auto here = [&] {
        return text("out[", b, ", ", h, ", ", i, ", ", d, "] is ", x, " but the reference is ", ref);
      };
      if (!same_kind(x, r))
        first(here());
      else if (empty && x != 0)
        first(here() + ": the row is empty");
      if (!std::isfinite(r) || !std::isfinite(x)) continue;
      const double error = std::abs(static_cast<double>(x) - ref);
      if (error > v_.max_error) worst_ = here();
      v_.max_error = std::max(v_.max_error, error);
      sum_error_ += error;
      if (std::isfinite(other)) {
        v_.max_base = std::max(v_.max_base, std::abs(other - ref));
        sum_base_ += std::abs(other - ref);
      }
      const auto rounded = [](float y) { return to_float(from_float<T>(y)); };
      rounding_ = std::max(rounding_,
                           std::abs(static_cast<double>(rounded(rounded(r + 0.3f) - 0.3f)) - static_cast<double>(r)));
      largest = std::max(largest, std::abs(ref));
      sum_ref_ += std::abs(ref);
      ++count_;
    }
    const double top = oracle_.top[at_row];
    const double unsure =
        (std::isfinite(top) ? product_unit(p) * 2 * terms_ * std::min(1.0, 2 * (1 - top)) : 0) + 4 * kUnit * largest;
    max_unsure_ = std::max(max_unsure_, unsure + shortfall(p) * largest);
    sum_unsure_ += unsure * unsure;
    ++rows_;
  }

  void lse(const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
    const float x =
        static_cast<const float*>(in_.tensors.lse.data)[lse_offset(in_.tensors.lse, seq.batch, h, seq.q_begin + i)];
    const double ref = oracle_.lse[reference::dense_lse_index(in_.problem, seq, h, i)];
    const auto here = [&] { return text("lse[", b, ", ", h, ", ", i, "] is ", x, " but the reference is ", ref); };
    if (!same_kind(x, static_cast<float>(ref))) return first(here());
    if (!std::isfinite(x)) return;
    const auto d = static_cast<double>(in_.problem.dim_qk);
    // Each of an fp8 product's terms is cut, not only its sum.
    const double steps = d / (in_.problem.dtype == DType::f8e4m3 ? 8 : d <= 256 ? 64 : 12);
    const double unsure = (2 + steps) * product_unit(in_.problem) * terms_;
    const double error = std::abs(static_cast<double>(x) - ref) / (1e-5 + 1e-6 * std::abs(ref) + unsure);
    if (error > 1) first(here() + text(": ", error, " times its bound"));
    v_.lse_error = std::max(v_.lse_error, error);
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
      first(text("recomputed[", b, ", ", h, ", ", i, "] is ", x,
                 empty ? ", of a row that sees no key" : text(" but the row's largest score is ", largest)));
  }

  Verdict conclude() {
    const double n = std::max<double>(1, static_cast<double>(count_)), factor = in_.problem.softcap > 0 ? 3 : 2;
    v_.max_allowed = factor * v_.max_base + 2 * rounding_ + max_unsure_;
    v_.mean_error = sum_error_ / n;
    v_.mean_base = sum_base_ / n;
    v_.mean_allowed = 1.5 * v_.mean_base +
                      (rounding_unit(in_.problem.out_dtype) + shortfall(in_.problem)) * sum_ref_ / n +
                      std::sqrt(sum_unsure_) / std::max<double>(1, static_cast<double>(rows_));
    return concluded(v_, worst_, std::move(violation_), in_);
  }

  void first(const std::string& sentence) {
    if (violation_.empty()) violation_ = sentence;
  }

  const Inputs& in_;
  const reference::Dense &oracle_, &base_;
  Verdict v_;
  std::string violation_, worst_;
  double sum_error_ = 0, sum_base_ = 0, sum_ref_ = 0, rounding_ = 0, max_unsure_ = 0, sum_unsure_ = 0;
  double terms_ = 0;  // of the row being judged: t in verdict.hpp
  std::int64_t count_ = 0, rows_ = 0;
};

}  // namespace

bool same_kind(float x, float r) { return std::isnan(r) ? std::isnan(x) : std::isinf(r) ? x == r : std::isfinite(x); }

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

Verdict judge(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base) {
  return Judge(inputs, oracle, base).judge();
}

}  // namespace onepass::check
