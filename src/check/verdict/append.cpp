// The rule for an append: copies have the same bits, rotations one rounding, and no other byte has changed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/tally.hpp"
#include "check/verdict/verdict.hpp"
#include "problem/append/append.hpp"

namespace onepass::check {
namespace {

class AppendJudge {
 public:
  explicit AppendJudge(const Inputs& in) : in_(in), p_(in.problem), t_(in.tensors) {}

  Verdict judge() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const Sequence s = sequence_of(p_, t_, b);
      const KeyValueView keys(t_.k_cache, s, t_.k_descale), values(t_.v_cache, s, t_.v_descale);
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        const NewToken token = new_token(t_, s, i);
        for (std::int64_t h = 0; h < p_.heads_kv && !token.skipped(); ++h) {
          const auto cached = [&](const char* name, const ConstTensor& from, const ConstTensor& to,
                                  const KeyValueView& view, std::int64_t rotary) {
            row({name, b, h, i, token.position, from, row_offset(from, b, h, s.q_begin + i), to,
                 view.offset(h, token.key), view.factor(h, token.key), rotary});
          };
          cached("k", t_.k_new, t_.k_cache, keys, p_.rotary_dim);
          cached("v", t_.v_new, t_.v_cache, values, 0);
        }
        for (std::int64_t h = 0; h < p_.heads_q; ++h)
          row({"q_out", b, h, i, token.position, t_.q, row_offset(t_.q, b, h, s.q_begin + i), t_.q_out,
               row_offset(t_.q_out, b, h, s.q_begin + i), 1.0f, p_.rotary_dim});
      }
    }
    const double count = static_cast<double>(std::max<std::int64_t>(1, count_));
    v_.mean_error = sum_error_ / count;
    v_.mean_allowed = v_.mean_base = sum_allowed_ / count;
    return concluded(v_, worst_, std::move(violation_), in_);
  }

 private:
  struct Row {
    const char* name;
    std::int64_t b, h, token, position;
    const ConstTensor& from;
    std::int64_t from_at;  // where its first element is
    ConstTensor to;
    std::int64_t to_at;
    float factor;
    std::int64_t rotary;
  };

  double angle(const ConstTensor& table, std::int64_t position, std::int64_t pair) const {
    return double{load_element(table.data, table.dtype, position * table.stride[0] + pair * table.stride[1])};
  }
  void row(const Row& r) {
    const std::int64_t half = r.rotary / 2;
    const auto x_at = [&](std::int64_t d) { return load_element(r.from.data, r.from.dtype, r.from_at + d); };
    for (std::int64_t d = 0; d < r.from.shape[r.from.rank - 1]; ++d) {
      const float got = load_element(r.to.data, r.to.dtype, r.to_at + d);
      if (d >= r.rotary) {
        const float x = x_at(d), expected = stored(r.to.dtype, x, r.factor);
        if (std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(expected) &&
            !(std::isnan(got) && std::isnan(expected)))
          first(text(here(r, d), " is ", got, " but the copied element is ", expected));
        continue;
      }
      const std::int64_t pair = p_.interleaved ? d / 2 : d % half;
      const std::int64_t x = p_.interleaved ? 2 * pair : pair, y = x + (p_.interleaved ? 1 : half);
      const bool second = d == y;
      const double a = double{x_at(second ? y : x)} * angle(t_.cos, r.position, pair),
                   e = double{x_at(second ? x : y)} * (second ? 1 : -1) * angle(t_.sin, r.position, pair);
      rotated(r, d, double{r.factor} * double{got}, a + e, std::abs(a) + std::abs(e));
    }
  }
  // An element that is copied, as the cache's dtype holds it.
  static float stored(DType dtype, float x, float factor) {
    if (dtype == DType::f8e4m3) return to_float(divided(x, factor));
    return with_float_type(dtype, [&](auto zero) { return to_float(from_float<decltype(zero)>(x)); });
  }
  // Two products and a sum, each rounded in fp32, a division by the factor, and the rounding of the dtype.
  void rotated(const Row& r, std::int64_t d, double got, double ref, double terms) {
    const bool fp8 = r.to.dtype == DType::f8e4m3;
    const double most = fp8 ? 448 * double{r.factor} : r.to.dtype == DType::f16 ? 65504 : 3.4e38;
    if (!std::isfinite(ref) || std::abs(ref) > most * (1 - 0x1p-12)) {  // a NaN, or what the dtype ends with
      const bool fits = !std::isfinite(ref) ? !std::isfinite(got) : !std::isfinite(got) || std::abs(got) >= 0.99 * most;
      if (!fits) first(text(here(r, d), " is ", got, " but the rotated element is ", ref));
      return;
    }
    const double unsure = 0x1p-22 * terms + 0x1p-148,
                 allowed =
                     unsure + double{r.factor} * half_ulp(r.to.dtype, (std::abs(ref) + unsure) / double{r.factor});
    const double error = std::abs(got - ref);
    if (!(error <= allowed))
      first(text(here(r, d), " is ", got, " but the rotated element is ", ref, ": off by ", error, ", allowed ",
                 allowed));
    if (error > v_.max_error) worst_ = text(here(r, d), " is ", got, " but the rotated element is ", ref);
    v_.max_error = std::max(v_.max_error, error);
    v_.max_allowed = std::max(v_.max_allowed, allowed);
    sum_error_ += error, sum_allowed_ += allowed, ++count_;
  }
  static std::string here(const Row& r, std::int64_t d) {
    return text(r.name, " of sequence ", r.b, ", head ", r.h, ", new token ", r.token, ", column ", d);
  }
  void first(const std::string& sentence) {
    if (violation_.empty()) violation_ = sentence;
  }

  const Inputs& in_;
  const Problem& p_;
  const Tensors& t_;
  Verdict v_;
  std::string violation_, worst_;
  double sum_error_ = 0, sum_allowed_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

Verdict judge_append(const Inputs& inputs) { return AppendJudge(inputs).judge(); }

}  // namespace onepass::check
