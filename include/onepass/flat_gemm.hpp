// Few rows times a wide matrix of weights: the linear layers of decoding.
#pragma once
#include <string>
#include <string_view>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct FlatGemmTensors {
  ConstTensor x{}, w{};
  Tensor y{};
  ConstTensor column_bias{};
};

// y = x w^T + column_bias: x [m, k], w [n, k], y [m, n], column_bias [n] or absent, any strides. x, w and column_bias
// are all bf16 or all fp16, on the CPU also all fp32; y is of their dtype or fp32. Sums are fp32 and taken in one
// order: the same bits every time. On the CPU any m, on CUDA up to 64; what it is made for is m up to 16, where reading
// w is all that takes time.
//
// y shares no memory with an input. Throws Error, with y untouched, if anything does not fit. The flat GEMM of Hong et
// al., FlashDecoding++, arXiv:2311.01282, section 4.
ONEPASS_API void flat_gemm(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                           const ConstTensor& column_bias = {}, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const FlatGemmTensors& tensors, std::string_view implementation = {},
                                         const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const FlatGemmTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const FlatGemmTensors& tensors);

}  // namespace onepass::inline v0
