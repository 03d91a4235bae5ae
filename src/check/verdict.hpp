// The rule of docs/conventions.md: when is a result right?
#pragma once
#include <string>

#include "check/inputs.hpp"

namespace onepass::check {

struct Verdict {
  bool accepted = true;  // false: the implementation refuses the problem; `sentence` says why
  bool right = false;
  std::string sentence;                                 // the first violation, or the figures
  double max_error = 0, max_base = 0, max_allowed = 0;  // |out - ref|
  double mean_error = 0, mean_base = 0, mean_allowed = 0;
  double lse_error = 0;  // the largest |lse - ref| / (1e-5 + 1e-6 |ref|): at most 1
};

// Judges what stands in the outputs of `inputs`:
//   1. infinities and NaNs exactly where the reference has them
//   2. max|out - ref| <= 2 max|base - ref| + 2 max|(r + 0.3) - 0.3 - r|, r: ref in out's dtype (3 instead of 2:
//   softcap)
//   3. mean|out - ref| <= 1.5 mean|base - ref| + one rounding unit of the output scale
//   4. |lse - ref| <= 1e-5 + 1e-6 |ref|; zeros in empty rows; nothing written outside the rows
Verdict judge(const Inputs& inputs, const ladder::Dense& oracle, const ladder::Dense& base);

}  // namespace onepass::check
