// The config and the parameters of the plain GEMM kernel. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

struct PlainGemmConfig {
  ScalarType input, output;
  bool bias;

  ONEPASS_FIELDS(PlainGemmConfig, input, output, bias)
};

constexpr int kPlainGemmTile = 16;  // rows and columns of a CTA's tile of y, and elements of k read at once
constexpr int kPlainGemmShared = 2 * kPlainGemmTile * (kPlainGemmTile + 1) * 4;  // bytes of a CTA

struct PlainGemmParams {
  const void *x, *w, *bias;
  void* y;
  long long x_stride[2], w_stride[2], y_stride[2], bias_stride;  // elements
  long long m, n, k, tiles_n;
};

}  // namespace onepass
