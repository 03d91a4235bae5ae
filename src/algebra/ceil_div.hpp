// Parts and multiples of a count, rounded up.
#pragma once
#include "algebra/portable.hpp"

namespace onepass {

// The number of parts of size `by` that n elements fill.
template <class N, class By>
ONEPASS_HD constexpr auto ceil_div(N n, By by) {
  return (n + by - 1) / by;
}
// The least multiple of `to` that is not less than n.
template <class N, class To>
ONEPASS_HD constexpr auto round_up(N n, To to) {
  return (n + to - 1) / to * to;
}

}  // namespace onepass
