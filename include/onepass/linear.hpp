// Linear layers of any number of rows, by the kernel that is fastest for it on this machine.
#pragma once
#include <string>
#include <string_view>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct LinearTensors {
  ConstTensor x{}, w{};
  Tensor y{};
  ConstTensor column_bias{};
};

// y = x w^T + column_bias: x [m, k], w [n, k], y [m, n], column_bias [n] or absent, any strides; x, w and column_bias
// are all bf16, fp16 or fp32, y is of their dtype or fp32, sums are fp32.
//
// Chosen among a GEMV, flat_gemm() and the GEMM of another library opened at run time (cuBLASLt on CUDA; a BLAS for
// fp32 on the CPU) by the crossovers that `onepass tune` has measured for (n, k) on this machine and keeps in the file
// ONEPASS_DATAFLOW (else linear.txt in the cache's directory); where there are none by the shape: up to 16 rows the
// library's own kernels, on the CPU always. The file is read once in a process. explain("linear m8 n4096 k4096 bf16
// cuda") says what was chosen and why. What cannot take the problem gives way to the next that can.
//
// y shares no memory with an input. Throws Error, with y untouched, if anything does not fit. The heuristic dataflow of
// Hong et al., FlashDecoding++, arXiv:2311.01282, section 5.
ONEPASS_API void linear(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                        const ConstTensor& column_bias = {}, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const LinearTensors& tensors, std::string_view implementation = {},
                                         const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const LinearTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const LinearTensors& tensors);

}  // namespace onepass::inline v0
