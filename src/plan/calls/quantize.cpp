// The calls of a quantize.
#include "onepass/quantize.hpp"
#include "plan/calls/call.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

Call call_from(const QuantizeTensors& t, const QuantizeOptions& o) {
  Call c{kQuantize, {}};
  c.tensors.x = t.x, c.tensors.y = t.y, c.tensors.descale = t.descale, c.tensors.mean = t.mean;
  c.options.hadamard = o.hadamard;
  c.options.seed = o.seed;
  return c;
}

}  // namespace

void quantize(const ConstTensor& x, const Tensor& y, const Tensor& descale, const Tensor& mean,
              const QuantizeOptions& options, const Launch& launch) {
  plan::compute(call_from(QuantizeTensors{x, y, descale, mean}, options), launch);
}
Plan make_plan(const QuantizeTensors& tensors, const QuantizeOptions& options, std::string_view implementation,
               const Executor* executor) {
  return plan::plan_of(call_from(tensors, options), implementation, executor);
}
void run(const Plan& plan, const QuantizeTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors, {}).tensors, launch);
}
std::string explain(const QuantizeTensors& tensors, const QuantizeOptions& options) {
  return plan::explained(call_from(tensors, options));
}

}  // namespace onepass::inline v0
