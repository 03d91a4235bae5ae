// The config and the parameters of the GEMV kernel. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

struct GemvConfig {
  ScalarType input, output;
  int rows;  // of x: 1 to kGemvMostRows
  bool bias;

  ONEPASS_FIELDS(GemvConfig, input, output, rows, bias)
};

constexpr int kGemvMostRows = 4, kGemvWarps = 8;  // a warp has a row of w

struct GemvParams {
  const void *x, *w, *bias;
  void* y;
  long long x_stride, w_stride, y_stride[2], bias_stride;  // of rows; x and w have k numbers side by side
  int n, k;
};

}  // namespace onepass
