// y = x w^T + bias in fp32, by tiles of 16 x 16 through shared memory: any strides, alignments, sizes and dtypes.
// It is the last of CUDA's products: a call that the tuned kernels and cuBLAS refuse takes it.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/gemm/plain_gemm_params.hpp"

namespace onepass {

constexpr PlainGemmConfig kPlain = plain_gemm_config;
constexpr i32 kTile = kPlainGemmTile;

// Element [row, column] of a matrix, 0 beyond its ends.
DEV float matrix_at(const void* base, const long long (&stride)[2], i64 row, i64 rows, i64 column, i64 columns) {
  return row < rows && column < columns ? element_at<kPlain.input>(base, row * stride[0] + column * stride[1]) : 0.0f;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kTile* onepass::kTile)
    plain_gemm(const __grid_constant__ onepass::PlainGemmParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  const auto x = reinterpret_cast<float(*)[kTile + 1]>(smem);  // a row has one word more, for different banks
  const auto w = x + kTile;
  const i32 i = static_cast<i32>(threadIdx.x) / kTile, j = static_cast<i32>(threadIdx.x) % kTile;
  const i64 tile_m = blockIdx.x / p.tiles_n, first_m = tile_m * kTile,
            first_n = (blockIdx.x - tile_m * p.tiles_n) * kTile;
  float sum = 0.0f;
  for (i64 k = 0; k < p.k; k += kTile) {
    x[i][j] = matrix_at(p.x, p.x_stride, first_m + i, p.m, k + j, p.k);
    w[i][j] = matrix_at(p.w, p.w_stride, first_n + i, p.n, k + j, p.k);
    __syncthreads();
    float part = 0.0f;  // sums of sums keep the bits that one long sum loses
#pragma unroll
    for (i32 d = 0; d < kTile; ++d) part = fmaf(x[i][d], w[j][d], part);
    sum += part;
    __syncthreads();
  }
  const i64 row = first_m + i, column = first_n + j;
  if (row >= p.m || column >= p.n) return;
  if (kPlain.bias) sum += element_at<kPlain.input>(p.bias, column * p.bias_stride);
  using Output = ElementOf<kPlain.output>::Format;
  static_cast<Output::Raw*>(p.y)[row * p.y_stride[0] + column * p.y_stride[1]] = Output::round(sum);
}
