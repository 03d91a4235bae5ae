// Times of one contender, collected over interleaved rounds.
#pragma once
#include <algorithm>
#include <vector>

namespace onepass::bench {

struct Sample {
  std::vector<double> seconds;

  double median() const {
    if (seconds.empty()) return 0;
    std::vector<double> s = seconds;
    const auto middle = s.begin() + static_cast<std::ptrdiff_t>(s.size() / 2);
    std::nth_element(s.begin(), middle, s.end());
    return *middle;
  }
  double best() const { return seconds.empty() ? 0 : *std::min_element(seconds.begin(), seconds.end()); }
};

}  // namespace onepass::bench
