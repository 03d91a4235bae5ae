// The unified maximum as kernels know it. One definition for the host and the device half.
#pragma once
#include "algebra/portable.hpp"

namespace onepass {

// A row whose largest score is further than this from unified_max counts as recomputed: kUnifiedRange of
// onepass/options.hpp, which NVRTC cannot read.
inline constexpr float kUnifiedReach = 40.0f;

struct RecomputedRows {
  int* at;  // null: not wanted
  long long stride[3];
  ONEPASS_HD void set(int batch, int head, int row, bool so) const {
    if (at) at[batch * stride[0] + head * stride[1] + row * stride[2]] = so;
  }
};

}  // namespace onepass
