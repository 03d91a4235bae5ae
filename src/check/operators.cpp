#include "check/operators.hpp"

#include <array>
#include <utility>

#include "check/draw/append.hpp"
#include "check/draw/attention.hpp"
#include "check/draw/parts.hpp"
#include "check/draw/rows.hpp"

namespace onepass::check {
namespace {

// Judges the results of `in` as those of another call, which has no buffers.
template <class F>
Verdict judge_as(Inputs& other, Inputs& in, const F& judge) {
  std::swap(other.buffers, in.buffers);
  Verdict verdict = judge(other);
  std::swap(other.buffers, in.buffers);
  return verdict;
}
// The reference in fp32 of products of tf32, beside their own; nullptr for other calls.
template <auto of>
auto* exact(Inputs& in, Executor& executor) {
  return in.problem.precision == Precision::tf32 ? &(in.exact().*of)(executor) : nullptr;
}

Verdict judge_forward(Inputs& in, Executor& executor, DeviceKind on) {
  if (in.problem.fp8)
    return judge_as(in.quantized(), in, [&](Inputs& quantized) { return judge_forward(quantized, executor, on); });
  return judge(in, in.oracle(executor), in.base(executor), on, exact<&Inputs::oracle>(in, executor));
}
Verdict judge_merge(Inputs& in, Executor& executor, DeviceKind on) {
  return judge(in, in.oracle(executor), in.base(executor), on);
}
Verdict judge_backward(Inputs& in, Executor& executor, DeviceKind on) {
  return judge(in, in.oracle_gradients(executor), in.base_gradients(executor), on,
               exact<&Inputs::oracle_gradients>(in, executor));
}
Verdict judge_backward_jvp(Inputs& in, Executor& executor, DeviceKind on) {
  return judge(in, in.oracle_second(executor), in.base_second(executor), on,
               exact<&Inputs::oracle_second>(in, executor));
}
Verdict judge_jvp(Inputs& in, Executor& executor, DeviceKind on) {
  const Verdict forward = judge_forward(in, executor, on);
  return forward.right ? judge_tangents(in, in.oracle_tangents(executor), in.base_tangents(executor), on,
                                        exact<&Inputs::oracle_tangents>(in, executor))
                       : forward;
}
template <auto rule>
Verdict by_references(Inputs& in, Executor& executor, DeviceKind) {
  return rule(in, in.oracle(executor), in.base(executor));
}
template <auto rule>
Verdict by_itself(Inputs& in, Executor&, DeviceKind) {
  return rule(in);
}

}  // namespace

const CheckedOperator& checked(Op op) {
  static constexpr std::array<CheckedOperator, 11> kAll{{
      {kForward, draw_forward, judge_forward},
      {kMerge, draw_parts, judge_merge},
      {kBackward, draw_backward, judge_backward},
      {kJvp, draw_tangents, judge_jvp},
      {kBackwardJvp, draw_backward_jvp, judge_backward_jvp},
      {kSoftmax, draw_softmax, by_references<judge_softmax>},
      {kSoftmaxBackward, draw_softmax_backward, by_references<judge_softmax>},
      {kQuantize, draw_numbers, by_itself<judge_quantized>},
      {kFlatGemm, draw_matrices, by_references<judge_flat_gemm>},
      {kLinear, draw_matrices, by_references<judge_flat_gemm>},
      {kAppend, draw_append, by_itself<judge_append>},
  }};
  return row_of(kAll, op);
}

Verdict judge(Inputs& in, Executor& executor, DeviceKind computed_on) {
  const auto& rule = checked(in.problem.op).judge;
  if (in.problem.precision == Precision::fp32 || computed_on == DeviceKind::cuda)
    return rule(in, executor, computed_on);
  return judge_as(in.exact(), in,
                  [&](Inputs& exact) { return rule(exact, executor, computed_on); });  // a CPU computes in fp32
}

}  // namespace onepass::check
