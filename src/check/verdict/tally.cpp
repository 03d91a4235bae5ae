#include "check/verdict/tally.hpp"

#include <algorithm>
#include <cmath>

namespace onepass::check {
namespace {

constexpr double kUnit = rounding_unit(DType::f32);
constexpr double kLuck = 3.2;  // sqrt(ln(1e9) / 2) of Hoeffding's inequality

}  // namespace

double half_ulp(DType dtype, double x) {
  const double least = dtype == DType::f8e4m3 ? 0x1p-6 : dtype == DType::f16 ? 0x1p-14 : 0x1p-126;  // a normal number
  return std::exp2(std::floor(std::log2(std::max(std::abs(x), least)))) *
         (dtype == DType::f8e4m3 ? 0x1p-4 : rounding_unit(dtype));
}

double sum_error(double n) { return kUnit * (4 + 2 * std::sqrt(n)); }

double weights_error(const Problem& p) {
  if (p.dtype == DType::f32) return p.precision == Precision::tf32 ? 3.5 * 0x1p-11 : 0;
  return 3.5 * (p.dtype == DType::f8e4m3 ? 0x1p-4 : rounding_unit(p.dtype));
}

bool Tally::add(double error, double base_error, double size, double bound, double rounding) {
  const bool worst = error > max_error_;
  max_error_ = std::max(max_error_, error);
  sum_error_ += error;
  if (std::isfinite(base_error)) {
    max_base_ = std::max(max_base_, base_error);
    sum_base_ += base_error;
  }
  sum_size_ += size;
  max_bound_ = std::max(max_bound_, bound + rounding);
  sum_bound_ += bound + rounding;
  open_.bound += bound;
  open_.roundings += rounding * rounding;
  ++count_;
  return worst;
}

void Tally::close(double key) {
  open_.key = std::isnan(key) ? 0 : key;
  groups_.push_back(open_);
  open_ = {0, 0, 0};
}

// The mean error that a right result exceeds with a probability of 1e-9: an error's expectation is at most half of its
// bound.
double Tally::most_likely() const {
  std::vector<Group> groups = groups_;
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.key < b.key; });
  double squares = 0;
  for (std::size_t i = 0; i < groups.size();) {
    double bound = 0, roundings = 0, copies = 0;
    for (const double key = groups[i].key; i < groups.size() && groups[i].key == key; ++i, ++copies)
      bound += groups[i].bound, roundings += groups[i].roundings;
    squares += bound * bound + copies * roundings;
  }
  return std::min(sum_bound_, sum_bound_ / 2 + kLuck * std::sqrt(squares)) / count();
}

void Tally::conclude(Verdict& v, double max_factor, double max_more, double mean_factor, double mean_more) const {
  v.compared = count_ > 0;
  v.max_error = max_error_;
  v.max_base = max_base_;
  v.max_allowed = std::max(max_factor * max_base_ + max_more, max_bound_);
  v.mean_error = sum_error_ / count();
  v.mean_base = sum_base_ / count();
  v.mean_allowed = std::max(mean_factor * v.mean_base + mean_more, most_likely());
}

}  // namespace onepass::check
