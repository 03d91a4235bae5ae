// The calls of a softmax and of its backward.
#include "onepass/softmax.hpp"
#include "plan/calls/call.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

Call softmax_from(Op op, const SoftmaxOptions& o) {
  Call c{op, {}};
  c.options.scale = o.scale;
  c.options.log = o.log;
  return c;
}
Call call_from(const SoftmaxTensors& t, const SoftmaxOptions& o) {
  Call c = softmax_from(kSoftmax, o);
  c.tensors.x = t.x, c.tensors.y = t.y, c.tensors.lse = t.lse;
  c.tensors.bool_mask = t.bool_mask, c.tensors.row_lse = t.row_lse;
  return c;
}
// A tensor that a forward writes and its backward reads.
Tensor read_only(const ConstTensor& t) {
  Tensor y;
  y.data = const_cast<void*>(t.data);
  y.rank = t.rank, y.shape = t.shape, y.stride = t.stride, y.dtype = t.dtype, y.device = t.device;
  return y;
}
Call call_from(const SoftmaxBackwardTensors& t, const SoftmaxOptions& o) {
  Call c = softmax_from(kSoftmaxBackward, o);
  c.tensors.y = read_only(t.y), c.tensors.dy = t.dy, c.tensors.dx = t.dx;
  return c;
}

}  // namespace

void softmax(const ConstTensor& x, const Tensor& y, const Tensor& lse, const SoftmaxOptions& options,
             const ConstTensor& bool_mask, const Launch& launch) {
  plan::compute(call_from(SoftmaxTensors{x, y, lse, bool_mask}, options), launch);
}
void softmax_piece(const ConstTensor& x, const ConstTensor& row_lse, const Tensor& y, const SoftmaxOptions& options,
                   const ConstTensor& bool_mask, const Launch& launch) {
  want(row_lse.given(), ErrorCode::bad_shape, "row_lse must be given");
  plan::compute(call_from(SoftmaxTensors{x, y, {}, bool_mask, row_lse}, options), launch);
}
Plan make_plan(const SoftmaxTensors& tensors, const SoftmaxOptions& options, std::string_view implementation,
               const Executor* executor) {
  return plan::plan_of(call_from(tensors, options), implementation, executor);
}
void run(const Plan& plan, const SoftmaxTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors, {}).tensors, launch);
}
std::string explain(const SoftmaxTensors& tensors, const SoftmaxOptions& options) {
  return plan::explained(call_from(tensors, options));
}

void softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx, const SoftmaxOptions& options,
                      const Launch& launch) {
  plan::compute(call_from(SoftmaxBackwardTensors{y, dy, dx}, options), launch);
}
Plan make_plan(const SoftmaxBackwardTensors& tensors, const SoftmaxOptions& options, std::string_view implementation,
               const Executor* executor) {
  return plan::plan_of(call_from(tensors, options), implementation, executor);
}
void run(const Plan& plan, const SoftmaxBackwardTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors, {}).tensors, launch);
}
std::string explain(const SoftmaxBackwardTensors& tensors, const SoftmaxOptions& options) {
  return plan::explained(call_from(tensors, options));
}

}  // namespace onepass::inline v0
