// The calls of the operators beside attention and merge: softmax, quantization, products with few rows.
#include "base/text.hpp"
#include "onepass/explain.hpp"
#include "onepass/flat_gemm.hpp"
#include "onepass/linear.hpp"
#include "onepass/quantize.hpp"
#include "onepass/softmax.hpp"
#include "plan/compute.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::inline v0 {
namespace {

CallOptions described(const SoftmaxOptions& options) {
  CallOptions a;
  a.scale = options.scale;
  a.log = options.log;
  return a;
}
CallOptions described(const QuantizeOptions& options) {
  CallOptions a;
  a.hadamard = options.hadamard;
  a.seed = options.seed;
  return a;
}

}  // namespace

Problem make_problem(const Tensors& tensors, Op op) { return problem_of(op, tensors, {}); }
Problem make_problem(const Tensors& tensors, Op op, const SoftmaxOptions& options) {
  return problem_of(op, tensors, described(options));
}
Problem make_problem(const Tensors& tensors, const QuantizeOptions& options) {
  return problem_of(Op::quantize, tensors, described(options));
}

namespace {

Tensors softmax_of(const ConstTensor& x, const Tensor& y, const Tensor& lse, const ConstTensor& bool_mask) {
  Tensors t;
  t.x = x, t.y = y, t.lse = lse, t.bool_mask = bool_mask;
  return t;
}

Tensors softmax_backward_of(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx) {
  Tensors t;
  // A backward reads it.
  t.y.data = const_cast<void*>(y.data);
  t.y.rank = y.rank, t.y.shape = y.shape, t.y.stride = y.stride, t.y.dtype = y.dtype, t.y.device = y.device;
  t.dy = dy, t.dx = dx;
  want(dy.given(), ErrorCode::bad_shape, "dy must be given");
  return t;
}

Tensors quantize_of(const ConstTensor& x, const Tensor& y, const Tensor& descale, const Tensor& mean) {
  want(descale.given(), ErrorCode::bad_shape, "descale must be given");
  Tensors t;
  t.x = x, t.y = y, t.descale = descale, t.mean = mean;
  return t;
}

Tensors product_of(const ConstTensor& x, const ConstTensor& w, const Tensor& y, const ConstTensor& column_bias) {
  want(w.given(), ErrorCode::bad_shape, "w must be given");
  Tensors t;
  t.x = x, t.w = w, t.y = y, t.column_bias = column_bias;
  return t;
}

std::string explained(Op op, const Tensors& tensors, const CallOptions& options = {}) {
  return explain(problem_of(op, tensors, options));
}

}  // namespace

void softmax(const ConstTensor& x, const Tensor& y, const Tensor& lse, const SoftmaxOptions& options,
             const ConstTensor& bool_mask, const Launch& launch) {
  plan::compute(Op::softmax, softmax_of(x, y, lse, bool_mask), described(options), launch);
}
std::string explain_softmax(const ConstTensor& x, const Tensor& y, const Tensor& lse, const SoftmaxOptions& options,
                            const ConstTensor& bool_mask) {
  return explained(Op::softmax, softmax_of(x, y, lse, bool_mask), described(options));
}

void softmax_piece(const ConstTensor& x, const ConstTensor& row_lse, const Tensor& y, const SoftmaxOptions& options,
                   const ConstTensor& bool_mask, const Launch& launch) {
  want(row_lse.given(), ErrorCode::bad_shape, "row_lse must be given");
  Tensors t = softmax_of(x, y, {}, bool_mask);
  t.row_lse = row_lse;
  plan::compute(Op::softmax, t, described(options), launch);
}

void softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx, const SoftmaxOptions& options,
                      const Launch& launch) {
  plan::compute(Op::softmax_backward, softmax_backward_of(y, dy, dx), described(options), launch);
}
std::string explain_softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx,
                                     const SoftmaxOptions& options) {
  return explained(Op::softmax_backward, softmax_backward_of(y, dy, dx), described(options));
}

void quantize(const ConstTensor& x, const Tensor& y, const Tensor& descale, const Tensor& mean,
              const QuantizeOptions& options, const Launch& launch) {
  plan::compute(Op::quantize, quantize_of(x, y, descale, mean), described(options), launch);
}
std::string explain_quantize(const ConstTensor& x, const Tensor& y, const Tensor& descale, const Tensor& mean,
                             const QuantizeOptions& options) {
  return explained(Op::quantize, quantize_of(x, y, descale, mean), described(options));
}

void flat_gemm(const ConstTensor& x, const ConstTensor& w, const Tensor& y, const ConstTensor& column_bias,
               const Launch& launch) {
  plan::compute(Op::flat_gemm, product_of(x, w, y, column_bias), {}, launch);
}
std::string explain_flat_gemm(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                              const ConstTensor& column_bias) {
  return explained(Op::flat_gemm, product_of(x, w, y, column_bias));
}

void linear(const ConstTensor& x, const ConstTensor& w, const Tensor& y, const ConstTensor& column_bias,
            const Launch& launch) {
  plan::compute(Op::linear, product_of(x, w, y, column_bias), {}, launch);
}
std::string explain_linear(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                           const ConstTensor& column_bias) {
  return explained(Op::linear, product_of(x, w, y, column_bias));
}

}  // namespace onepass::inline v0
