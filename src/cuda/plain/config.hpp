// The parameters of the plain kernel. One definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass {

// A row whose largest score is further than this from unified_max counts as recomputed; kUnifiedRange of the host.
constexpr float kPlainReach = 40.0f;
constexpr int kPlainRows = 64, kPlainKeys = 32,
              kPlainWarps = 8;  // of a CTA's tile; 64 x 32 is what masks are packed in

struct PlainParams : ForwardParams {
  float unified_max;
  int* recomputed;  // null: not asked for
  long long recomputed_stride[3];
};

}  // namespace onepass
