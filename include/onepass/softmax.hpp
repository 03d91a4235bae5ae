// Softmax over rows and its gradient, whole or in pieces.
//
//   y_j = e^(s_j - LSE)     s = scale * x     LSE = log sum_j e^s_j over what is visible
#pragma once
#include "onepass/attention.hpp"
#include "onepass/export.h"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct SoftmaxOptions {
  double scale = 1.0;  // any number from -2.3e38 to 2.3e38
  bool log = false;    // y_j = s_j - LSE, the logarithm
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

// The problem of a softmax or of its backward, for make_plan().
[[nodiscard]] ONEPASS_API Problem make_problem(const Tensors& tensors, Op op, const SoftmaxOptions& options);

// y of a piece of rows, whose LSEs over all pieces are given, fp32 [..]: y_j = e^(s_j - row_lse). Those of the pieces,
// which softmax() with y left out gives, are joined by merge_lse().
ONEPASS_API void softmax_piece(const ConstTensor& x, const ConstTensor& row_lse, const Tensor& y,
                               const SoftmaxOptions& options = {}, const ConstTensor& bool_mask = {},
                               const Launch& launch = {});

// LSEs of rows from those of their pieces, fp32 [..] of rank 1 to 3: lse = log sum_i e^lses[i], -inf if all are. In any
// order, up to rounding.
ONEPASS_API void merge_lse(std::span<const ConstTensor> lses, const Tensor& lse, const Launch& launch = {});

// The gradient of x from y, as softmax() wrote it, and dy, of y's dtype; all of one shape and any strides. dx has y's
// dtype, or any of the three if y is fp32. dx_j = scale y_j (dy_j - sum_i dy_i y_i), of a logarithm scale (dy_j -
// e^y_j sum_i dy_i). Where y is 0 (of a logarithm -inf) dx is 0 and dy is not used.
ONEPASS_API void softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx,
                                  const SoftmaxOptions& options = {}, const Launch& launch = {});

}  // namespace onepass::inline v0
