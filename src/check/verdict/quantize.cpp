// The rule for a quantize: its fp8_e4m3 elements, their scales and the means that were subtracted.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/verdict/verdict.hpp"
#include "problem/quantize/quantize_problem.hpp"

namespace onepass::check {
namespace {

constexpr double kUnsure = 0x1p-20;  // relative error of fp32 sums

class QuantizeJudge {
 public:
  explicit QuantizeJudge(const Inputs& in)
      : in_(in), p_(in.problem), n_(p_.seq_k), signs_(rotation_signs(p_.seed)), mean_(static_cast<std::size_t>(n_)) {}

  Verdict judge() {
    const std::int64_t pairs = p_.batch * p_.heads_q, blocks = descale_blocks(p_.seq_q);
    std::vector<Extent> extents(static_cast<std::size_t>(p_.descale.blocks ? pairs * blocks : pairs));
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      if (p_.centered) means(pair);
      for (std::int64_t i = 0; i < p_.seq_q; ++i)
        extents[static_cast<std::size_t>(p_.descale.blocks ? pair * blocks + i / kDescaleRows : pair)] |= row(pair, i);
    }
    if (p_.descale.blocks) {
      for (std::int64_t i = 0; i < pairs * blocks; ++i) factor(i / blocks, i % blocks, extents[i], extents[i].largest);
    } else {
      std::vector<Extent> all(extents.size());
      const auto first = [&](std::int64_t i) {
        return (p_.descale.batch ? i / p_.heads_q * p_.heads_q : 0) + (p_.descale.heads ? i % p_.heads_q : 0);
      };
      for (std::int64_t i = 0; i < pairs; ++i) all[first(i)] |= extents[i];
      for (std::int64_t i = 0; i < pairs; ++i)
        if (first(i) == i) factor(i, 0, all[i], 4 * all[i].reach);
    }
    const double count = std::max<double>(1, static_cast<double>(count_));
    v_.mean_error = sum_error_ / count;
    v_.mean_allowed = sum_allowed_ / count;
    v_.mean_base = v_.mean_allowed;
    return concluded(v_, worst_, std::move(violation_), in_);
  }

 private:
  // The largest number to be stored, and the largest that it could have been by the sizes of its terms. A
  // factor that many rows share is chosen before their means and rotations are known, from the terms.
  struct Extent {
    double largest = 0, reach = 0;
    void operator|=(const Extent& other) {
      largest = std::max(largest, other.largest);
      reach = std::max(reach, other.reach);
    }
  };

  float x_at(std::int64_t pair, std::int64_t i, std::int64_t c) const {
    const Dims& s = in_.tensors.x.stride;
    return load_element(in_.tensors.x.data, p_.dtype,
                        pair / p_.heads_q * s[0] + pair % p_.heads_q * s[1] + i * s[2] + c * s[3]);
  }
  float descale_at(std::int64_t pair, std::int64_t block) const {
    const Dims& s = p_.layout.descale;
    const std::int64_t b = p_.descale.batch ? pair / p_.heads_q : 0, h = p_.descale.heads ? pair % p_.heads_q : 0;
    return static_cast<const float*>(in_.tensors.descale.data)[b * s[0] + h * s[1] + block * s[2]];
  }

  void means(std::int64_t pair) {
    const Dims& s = p_.layout.mean;
    for (std::int64_t c = 0; c < n_; ++c) {
      double sum = 0, sizes = 0;
      for (std::int64_t i = 0; i < p_.seq_q; ++i) {
        const double x = double{x_at(pair, i, c)};
        if (std::isfinite(x)) sum += x, sizes += std::abs(x);
      }
      const double rows = static_cast<double>(std::max<std::int64_t>(1, p_.seq_q)), ref = sum / rows;
      const float is = static_cast<const float*>(
          in_.tensors.mean.data)[pair / p_.heads_q * s[0] + pair % p_.heads_q * s[1] + c * s[2]];
      if (!(std::abs(double{is} - ref) <= kUnsure * sizes / rows + 1e-45))
        first(text("mean[", pair, ", ", c, "] is ", is, " but the reference is ", ref));
      mean_[c] = double{is};
    }
  }

  Extent row(std::int64_t pair, std::int64_t i) {
    std::vector<double> x(static_cast<std::size_t>(n_)), size(x.size());
    for (std::int64_t c = 0; c < n_; ++c) {
      x[c] = double{x_at(pair, i, c)} - (p_.centered ? mean_[c] : 0.0);
      size[c] = std::abs(double{x_at(pair, i, c)}) + (p_.centered ? std::abs(mean_[c]) : 0.0);
      if (p_.hadamard && (signs_[static_cast<std::size_t>(c / 32)] >> c % 32 & 1)) x[c] = -x[c];
    }
    const double reach = reach_of(size);
    if (p_.hadamard) rotate(x, size);
    const float f = descale_at(pair, p_.descale.blocks ? i / kDescaleRows : 0);
    const Dims& s = in_.tensors.y.stride;
    Extent extent;
    for (std::int64_t c = 0; c < n_; ++c) {
      const float y = load_element(in_.tensors.y.data, DType::f8e4m3,
                                   pair / p_.heads_q * s[0] + pair % p_.heads_q * s[1] + i * s[2] + c * s[3]);
      const auto here = [&] {
        return text("y[", pair, ", ", i, ", ", c, "] represents ", double{y} * double{f}, " but the reference is ",
                    x[c]);
      };
      if (!std::isfinite(x[c])) {
        if (!std::isnan(y)) first(here());
        continue;
      }
      extent |= {std::abs(x[c]), reach};
      const double step =
          std::max(std::exp2(std::floor(std::log2(std::max(std::abs(x[c] / double{f}), 1e-30)))), 0x1p-6);
      const double error = std::abs(double{y} * double{f} - x[c]), allowed = step * double{f} / 16 + kUnsure * size[c];
      if (!(error <= allowed)) first(text(here(), ": off by ", error, ", allowed ", allowed));
      if (error > v_.max_error) worst_ = here();
      v_.max_error = std::max(v_.max_error, error);
      v_.max_allowed = std::max(v_.max_allowed, allowed);
      sum_error_ += error, sum_allowed_ += allowed, ++count_;
    }
    return extent;
  }
  // How large an element of the row can become: of t elements that are mixed, |x'| <= sum |x| / root t <= root t max
  // |x|. The sum is over the row, in which t elements are mixed at a time.
  double reach_of(const std::vector<double>& size) const {
    double sum = 0, largest = 0;
    for (const double x : size)
      if (std::isfinite(x)) sum += x, largest = std::max(largest, x);
    const auto together = static_cast<double>(rotated_together(n_));
    return p_.hadamard ? std::min(sum, together * largest) / std::sqrt(together) : largest;
  }
  // As the textbook: entry (i, j) is -1 to the number of binary digits that i and j share. size: of a sum's terms.
  void rotate(std::vector<double>& x, std::vector<double>& size) const {
    const std::int64_t together = rotated_together(n_);
    const std::vector<double> from = x, sizes = size;
    const double root = std::sqrt(static_cast<double>(together));
    for (std::int64_t c = 0; c < n_; ++c) {
      const std::int64_t begin = c / together * together;
      x[c] = size[c] = 0;
      for (std::int64_t j = 0; j < together; ++j) {
        x[c] += (__builtin_parityll(static_cast<unsigned long long>(c - begin) & static_cast<unsigned long long>(j))
                     ? -from[begin + j]
                     : from[begin + j]) /
                root;
        size[c] += sizes[begin + j] / root;
      }
    }
  }

  // A factor is at most twice what `most` needs, since it is rounded up to a power of 2.
  void factor(std::int64_t pair, std::int64_t block, const Extent& extent, double most) {
    const float f = descale_at(pair, block);
    const double unsure = kUnsure * extent.reach;
    int exponent = 0;
    const auto here = [&] {
      return text("descale[", pair, ", ", block, "] is ", f, " but the largest element is ", extent.largest);
    };
    if (!(f > 0) || std::frexp(f, &exponent) != 0.5f) return first(here() + ": the factor must be a power of 2");
    if (extent.largest > 448 * double{f} + unsure) first(here() + ": elements exceed the range of fp8_e4m3");
    if (f > 0x1p-107f && 448 * double{f} > 2 * (most + unsure)) first(here() + ": the factor is too large");
  }

  void first(const std::string& sentence) {
    if (violation_.empty()) violation_ = sentence;
  }

  const Inputs& in_;
  const Problem& p_;
  const std::int64_t n_;
  const std::array<std::uint32_t, 8> signs_;
  std::vector<double> mean_;
  Verdict v_;
  std::string violation_, worst_;
  double sum_error_ = 0, sum_allowed_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

Verdict judge_quantized(const Inputs& inputs) { return QuantizeJudge(inputs).judge(); }

}  // namespace onepass::check
