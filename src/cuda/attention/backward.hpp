// TENTATIVE until the shared one is merged.
#pragma once
#include "cuda/attention/attention.hpp"

namespace onepass {

struct BackwardFeatures {
  AttentionFeatures attention;
  ScalarType gradient;  // of dq, dk and dv
  bool dbias, dslopes, deterministic;
  ONEPASS_HD friend constexpr bool operator==(const BackwardFeatures&, const BackwardFeatures&) = default;
};

struct BackwardParams : AttentionParams {
  const float* statistics;
  float* dq_sums;
  int row_blocks;  // of a head
  void *dq, *dk, *dv;
  long long dq_stride[3], dk_stride[3], dv_stride[3];
};

}  // namespace onepass
