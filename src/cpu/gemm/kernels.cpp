// The products of a flat GEMM, compiled once per instruction set.
//
// Four rows of w become fp32 in a worker's scratch, which the first row of x pays for; every four rows of x then make
// 16 sums from 8 loads a vector. With one to four rows of x that is one pass over w and nothing else.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/kernels.cpp"
#include <hwy/foreach_target.h>

#include "cpu/common/simd-inl.h"
#include "cpu/gemm/flat_gemm.hpp"

#include <hwy/cache_control.h>

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kColumns = 4, kRows = 4;

// A row of numbers as fp32, zeros behind it up to whole pairs of vectors.
template <class T>
void widen_row(const T* from, std::int64_t step, std::int64_t count, std::int64_t padded, float* to) {
  std::int64_t i = 0;
  if (step == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      hwy::Prefetch(reinterpret_cast<const char*>(from + i) + 2048);
      hn::StoreU(load(DF(), from + i), DF(), to + i);
    }
  }
  for (; i < count; ++i) to[i] = to_float(from[i * step]);
  for (; i < padded; ++i) to[i] = 0;
}
void widen_row(const ConstTensor& t, const Dims& stride, std::int64_t row, std::int64_t count, std::int64_t padded,
               float* to) {
  const std::int64_t at = row * stride[0];
  switch (t.dtype) {
    case DType::f16: return widen_row(static_cast<const f16*>(t.data) + at, stride[1], count, padded, to);
    case DType::bf16: return widen_row(static_cast<const bf16*>(t.data) + at, stride[1], count, padded, to);
    default: return widen_row(static_cast<const float*>(t.data) + at, stride[1], count, padded, to);
  }
}
void widen_x(const FlatGemmJob& job, std::int64_t row, float* to) {
  widen_row(job.t.x, job.p.layout.x, row, job.p.k, job.stride, to);
}

// sums[r][c] of kRows x rows and kColumns w rows.
template <std::int64_t rows>
void dot(const float* x, const float* w, std::int64_t stride, float (&sums)[kRows][kColumns]) {
  VF sum[rows][kColumns];
  for (auto& row : sum)
    for (VF& s : row) s = hn::Zero(DF());
  for (std::int64_t i = 0; i < stride; i += kLanes) {
    VF b[kColumns];
    for (std::int64_t c = 0; c < kColumns; ++c) b[c] = hn::LoadU(DF(), w + c * stride + i);
    for (std::int64_t r = 0; r < rows; ++r) {
      const VF a = hn::LoadU(DF(), x + r * stride + i);
      for (std::int64_t c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(a, b[c], sum[r][c]);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < kColumns; ++c) sums[r][c] = hn::GetLane(hn::SumOfLanes(DF(), sum[r][c]));
}

void columns_of(const FlatGemmJob& job, std::int64_t begin, float* scratch) {
  const Problem& p = job.p;
  const std::int64_t count = std::min(kColumns, p.n - begin);
  for (std::int64_t c = 0; c < kColumns; ++c)  // beyond the last: the last once more, and left out
    widen_row(job.t.w, p.layout.w, begin + std::min(c, count - 1), p.k, job.stride, scratch + c * job.stride);
  const Dims &y = p.layout.y, &bias = p.layout.column_bias;
  for (std::int64_t m = 0; m < p.m; m += kRows) {
    float sums[kRows][kColumns];
    const float* const x = job.x + m * job.stride;
    switch (std::min(kRows, p.m - m)) {
      case 1: dot<1>(x, scratch, job.stride, sums); break;
      case 2: dot<2>(x, scratch, job.stride, sums); break;
      case 3: dot<3>(x, scratch, job.stride, sums); break;
      default: dot<4>(x, scratch, job.stride, sums);
    }
    for (std::int64_t r = 0; r < std::min(kRows, p.m - m); ++r)
      for (std::int64_t c = 0; c < count; ++c) {
        const float more = p.column_bias ? load_element(job.t.column_bias.data, p.dtype, (begin + c) * bias[0]) : 0;
        store_element(job.t.y.data, p.out_dtype, (m + r) * y[0] + (begin + c) * y[1], sums[r][c] + more);
      }
  }
}

}  // namespace

FlatGemmKernels flat_gemm_kernels_of(std::int64_t target) { return {target, widen_x, columns_of}; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu {

const FlatGemmKernels& flat_gemm_kernels(std::int64_t target) {
#define ONEPASS_ROW(ns, target, isa) ns::flat_gemm_kernels_of(target),
  static const FlatGemmKernels kernels[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  const FlatGemmKernels* row = kernels;
  while (row->target != target) ++row;
  return *row;
}

}  // namespace onepass::cpu
#endif
