// The errors of a result beside those of the base and beside what arithmetic allows each element.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check/verdict/verdict.hpp"

namespace onepass::check {

// Half the distance from x to the next number of the dtype: the most that storing x can add to its error.
double half_ulp(DType dtype, double x);

// CPU kernels flush smaller numbers to 0.
inline constexpr double kFlushed = 0x1p-126;

// The error of an fp32 sum of n products, as a share of the sum of their sizes. Each of n roundings errs by at most u,
// with a standard deviation of u / sqrt(3), relative to a partial sum that grows to the whole: sqrt(n / 9) u together.
// Six standard deviations are 2 sqrt(n) u. The products, the weights and the division add 4 u.
double sum_error(double n);

// The error that weights of fewer bits add to a sum, as a share of sqrt(sum of (weight * value)^2): each errs by at
// most one rounding unit, evenly, and six standard deviations of their sum are 3.5 units. 0 for fp32.
double weights_error(const Problem& problem);

// The error of a result beside the nearer of two references.
inline double nearest(double x, double reference, double other) {
  return std::min(std::abs(x - reference), std::abs(x - other));
}

// Collects |result - reference| and |base - reference| of all elements, and the largest error that a right result can
// have in each, in two parts:
//   bound     errors of scores, weights and sums, which the elements of a group (a row) share
//   rounding  half an ulp of the stored element, independent of all others
class Tally {
 public:
  // Returns true if this is the largest error so far. base_error: ignored if it is not finite.
  bool add(double error, double base_error, double size, double bound, double rounding);
  // Ends a group. Groups with the same key are copies of one computation (strides of 0), whose errors are the same.
  void close(double key);

  double mean_size() const { return sum_size_ / count(); }
  double count() const { return static_cast<double>(count_ > 0 ? count_ : 1); }
  // Fills in the errors and their bounds: a multiple of base's error plus what is given, or the largest error of
  // a right result if that is more.
  void conclude(Verdict& verdict, double max_factor, double max_more, double mean_factor, double mean_more) const;

 private:
  struct Group {
    double key, bound, roundings;  // sums over the group, of squares for roundings
  };
  double most_likely() const;

  double max_error_ = 0, max_base_ = 0, max_bound_ = 0, sum_error_ = 0, sum_base_ = 0, sum_bound_ = 0, sum_size_ = 0;
  std::int64_t count_ = 0;
  Group open_{0, 0, 0};
  std::vector<Group> groups_;
};

}  // namespace onepass::check
