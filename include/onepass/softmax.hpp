// Softmax over rows and its gradient, whole or in pieces.
//
//   y_j = e^(s_j - LSE)     s = scale * x     LSE = log sum_j e^s_j over what is visible
#pragma once
#include <string>
#include <string_view>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/merge.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct SoftmaxOptions {
  double scale = 1.0;  // any number from -2.3e38 to 2.3e38
  bool log = false;    // y_j = s_j - LSE, the logarithm
};

// The tensors of a softmax, and of its backward, as the functions below document them. row_lse: softmax_piece().
struct SoftmaxTensors {
  ConstTensor x{};
  Tensor y{}, lse{};
  ConstTensor bool_mask{}, row_lse{};
};
struct SoftmaxBackwardTensors {
  ConstTensor y{}, dy{};
  Tensor dx{};
};

// Over the last dimension of x, [.., n] of rank 1 to 4 and any strides, fp32, fp16 or bf16. y has x's shape, and its
// dtype or fp32; lse, fp32 [..] ([1] of a single row), is the natural logarithm of the rows' sums. Either may be left
// out. bool_mask, true = visible, has any strides and x's sizes or 1; dimensions missing in front are 1.
//
// Where an entry is hidden, or x is -inf, y is 0 (of a logarithm -inf), also beside a NaN, which all other entries of
// its row become. A row of nothing else has the LSE -inf.
//
// y and lse share no memory with an input or each other. Throws Error, with both untouched, if anything does not fit.
// Milakov & Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867.
ONEPASS_API void softmax(const ConstTensor& x, const Tensor& y, const Tensor& lse = {},
                         const SoftmaxOptions& options = {}, const ConstTensor& bool_mask = {},
                         const Launch& launch = {});

// y of a piece of rows, whose LSEs over all pieces are given, fp32 [..]: y_j = e^(s_j - row_lse). Those of the pieces,
// which softmax() with y left out gives, are joined by merge_lse() (onepass/merge.hpp).
ONEPASS_API void softmax_piece(const ConstTensor& x, const ConstTensor& row_lse, const Tensor& y,
                               const SoftmaxOptions& options = {}, const ConstTensor& bool_mask = {},
                               const Launch& launch = {});

// The gradient of x from y, as softmax() wrote it, and dy, of y's dtype; all of one shape and any strides. dx has y's
// dtype, or any of the three if y is fp32. dx_j = scale y_j (dy_j - sum_i dy_i y_i), of a logarithm scale (dy_j -
// e^y_j sum_i dy_i). Where y is 0 (of a logarithm -inf) dx is 0 and dy is not used.
ONEPASS_API void softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx,
                                  const SoftmaxOptions& options = {}, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const SoftmaxTensors& tensors, const SoftmaxOptions& options = {},
                                         std::string_view implementation = {}, const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const SoftmaxTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const SoftmaxTensors& tensors, const SoftmaxOptions& options = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const SoftmaxBackwardTensors& tensors, const SoftmaxOptions& options = {},
                                         std::string_view implementation = {}, const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const SoftmaxBackwardTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const SoftmaxBackwardTensors& tensors, const SoftmaxOptions& options = {});

}  // namespace onepass::inline v0
