// The calls of a flat GEMM and of a linear.
#include "onepass/flat_gemm.hpp"
#include "onepass/linear.hpp"
#include "plan/calls/call.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

template <class T>
Call gemm_from(Op op, const T& t) {
  Call c{op, {}};
  c.tensors.x = t.x, c.tensors.w = t.w, c.tensors.y = t.y, c.tensors.column_bias = t.column_bias;
  return c;
}
Call call_from(const FlatGemmTensors& t) { return gemm_from(kFlatGemm, t); }
Call call_from(const LinearTensors& t) { return gemm_from(kLinear, t); }

}  // namespace

void flat_gemm(const ConstTensor& x, const ConstTensor& w, const Tensor& y, const ConstTensor& column_bias,
               const Launch& launch) {
  plan::compute(call_from(FlatGemmTensors{x, w, y, column_bias}), launch);
}
Plan make_plan(const FlatGemmTensors& tensors, std::string_view implementation, const Executor* executor) {
  return plan::plan_of(call_from(tensors), implementation, executor);
}
void run(const Plan& plan, const FlatGemmTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors).tensors, launch);
}
std::string explain(const FlatGemmTensors& tensors) { return plan::explained(call_from(tensors)); }

void linear(const ConstTensor& x, const ConstTensor& w, const Tensor& y, const ConstTensor& column_bias,
            const Launch& launch) {
  plan::compute(call_from(LinearTensors{x, w, y, column_bias}), launch);
}
Plan make_plan(const LinearTensors& tensors, std::string_view implementation, const Executor* executor) {
  return plan::plan_of(call_from(tensors), implementation, executor);
}
void run(const Plan& plan, const LinearTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors).tensors, launch);
}
std::string explain(const LinearTensors& tensors) { return plan::explained(call_from(tensors)); }

}  // namespace onepass::inline v0
