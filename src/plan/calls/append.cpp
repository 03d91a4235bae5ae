// The calls of an append.
#include "onepass/append.hpp"
#include "plan/calls/call.hpp"
#include "problem/append/append.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

Call call_from(const AppendTensors& t, bool interleaved) {
  Call c{kAppend, as_tensors(t)};
  c.options.interleaved = interleaved;
  return c;
}

}  // namespace

void append_kv(const AppendTensors& tensors, bool interleaved, const Launch& launch) {
  plan::compute(call_from(tensors, interleaved), launch);
}
Plan make_plan(const AppendTensors& tensors, bool interleaved, std::string_view implementation,
               const Executor* executor) {
  return plan::plan_of(call_from(tensors, interleaved), implementation, executor);
}
void run(const Plan& plan, const AppendTensors& tensors, const Launch& launch) {
  run(plan, as_tensors(tensors), launch);
}
std::string explain(const AppendTensors& tensors, bool interleaved) {
  return plan::explained(call_from(tensors, interleaved));
}

}  // namespace onepass::inline v0
