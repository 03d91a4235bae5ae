// The parameters of the plain kernel. One definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"
#include "cuda/attention/unified_max.hpp"

namespace onepass {

constexpr int kPlainRows = 64, kPlainKeys = 32,
              kPlainWarps = 8;  // of a CTA's tile; 64 x 32 is what masks are packed in

struct PlainParams : EntropyParams {
  float unified_max;
  RecomputedRows recomputed;
};

}  // namespace onepass
