// A number for Attention::unified_max, from what a model's scores have been.
#pragma once
#include <limits>

#include "onepass/export.h"
#include "onepass/options.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// The LSEs of calls for calibration, which lie between a row's largest score and log(keys) above it.
struct ONEPASS_API ScoreRange {
  float low = std::numeric_limits<float>::max(), high = -low;  // nothing yet

  // The range of a call's rows; fp32 of any strides, on the CPU. Those of rows that see no key, -inf, and NaNs are left
  // out.
  void observe(const ConstTensor& lse);
  // The middle; 0 if nothing was observed.
  float unified_max() const;
  // True if it serves every row that was observed; with more than e^40 = 10^17 keys it might not.
  bool serves_all() const { return high - low <= 2 * kUnifiedRange; }
};

}  // namespace onepass::inline v0
