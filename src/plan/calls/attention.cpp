// The calls of attention, its backward, the forward mode of both, and attention that is quantized for FP8.
#include "onepass/attention.hpp"
#include "onepass/quantize.hpp"
#include "plan/calls/call.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

Call call_from(Op op, const AttentionTensors& t, const Attention& a) { return {op, t, {a}}; }
Call call_from(const AttentionTensors& t, const Attention& a) {
  return call_from(attention_op(t.dout.given(), t.tout.given()), t, a);
}
Call call_from(const AttentionTensors& t, const Attention& a, const Fp8Options& fp8) {
  Call c = call_from(kForward, t, a);
  c.options.fp8 = fp8;
  return c;
}

}  // namespace

void attention(const AttentionTensors& tensors, const Attention& attention, const Launch& launch,
               std::string_view implementation) {
  plan::compute(call_from(kForward, tensors, attention), launch, implementation);
}
void attention_backward(const AttentionTensors& tensors, const Attention& attention, const Launch& launch,
                        std::string_view implementation) {
  want(tensors.dout.given(), ErrorCode::bad_shape, "dout must be given");
  plan::compute(call_from(kBackward, tensors, attention), launch, implementation);
}
void jvp(const AttentionTensors& tensors, const Attention& attention, const Launch& launch,
         std::string_view implementation) {
  plan::compute(call_from(kJvp, tensors, attention), launch, implementation);
}
void backward_jvp(const AttentionTensors& tensors, const Attention& attention, const Launch& launch,
                  std::string_view implementation) {
  plan::compute(call_from(kBackwardJvp, tensors, attention), launch, implementation);
}
Plan make_plan(const AttentionTensors& tensors, const Attention& attention, std::string_view implementation,
               const Executor* executor) {
  return plan::plan_of(call_from(tensors, attention), implementation, executor);
}
void run(const Plan& plan, const AttentionTensors& tensors, const Launch& launch) {
  run(plan, Tensors(tensors), launch);
}
std::string explain(const AttentionTensors& tensors, const Attention& attention) {
  return plan::explained(call_from(tensors, attention));
}

void attention_fp8(const AttentionTensors& tensors, const Attention& attention, const Fp8Options& options,
                   const Launch& launch, std::string_view implementation) {
  plan::compute(call_from(tensors, attention, options), launch, implementation);
}
Plan make_plan(const AttentionTensors& tensors, const Attention& attention, const Fp8Options& options,
               std::string_view implementation, const Executor* executor) {
  return plan::plan_of(call_from(tensors, attention, options), implementation, executor);
}
std::string explain(const AttentionTensors& tensors, const Attention& attention, const Fp8Options& options) {
  return plan::explained(call_from(tensors, attention, options));
}

}  // namespace onepass::inline v0
