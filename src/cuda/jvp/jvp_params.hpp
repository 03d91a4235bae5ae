// The features and the parameters of the forward mode's kernels: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass {

struct JvpFeatures {
  ForwardFeatures forward;
  bool tbias, tsinks;  // given
  ONEPASS_FIELDS(JvpFeatures, forward, tbias, tsinks)
};

// Tangents of q, k, v, bias and sinks, and the derivatives of O and the LSE.
struct JvpParams : ForwardParams {
  const void *tq, *tk, *tv;
  long long tq_stride[3], tk_stride[3], tv_stride[3];
  const void* tbias;
  long long tbias_stride[4];
  const float* tsinks;
  long long tsink_stride;
  void* tout;
  long long tout_stride[3];
  float* tlse;  // null: not wanted
  long long tlse_stride[3];
};

constexpr int kJvpPlainRows = 64, kJvpPlainWarps = 8;  // of a CTA of the plain kernel

}  // namespace onepass
