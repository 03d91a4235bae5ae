// Parts and multiples of a count, rounded up.
#pragma once

namespace onepass {

// The number of parts of size `by` that n elements fill.
template <class N, class By>
constexpr auto ceil_div(N n, By by) {
  return (n + by - 1) / by;
}
// The least multiple of `to` that is not less than n.
template <class N, class To>
constexpr auto round_up(N n, To to) {
  return (n + to - 1) / to * to;
}

}  // namespace onepass
