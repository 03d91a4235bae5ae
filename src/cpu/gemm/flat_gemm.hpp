// Few rows times a wide matrix on the CPU: w is read once, four of its rows against four rows of x at a time.
#pragma once
#include <cstdint>
#include <span>

#include "problem/implementation.hpp"

namespace onepass::cpu {

// x as fp32 [m][stride], zeros behind each row's k numbers; a worker's rows of w likewise where they are not fp32.
struct FlatGemmJob {
  const Problem& p;
  const Tensors& t;
  const float* x;
  std::int64_t stride;
};
struct FlatGemmKernels {
  std::int64_t target;
  void (*widen)(const FlatGemmJob&, std::int64_t row, float* to);  // a row of x
  // y of columns [begin, begin + 4): scratch holds four rows of w.
  void (*columns)(const FlatGemmJob&, std::int64_t begin, float* scratch);
};
const FlatGemmKernels& flat_gemm_kernels(std::int64_t target);

// "cpu.flat_gemm.avx512", ..
std::span<const Implementation> flat_gemm_implementations();

}  // namespace onepass::cpu
