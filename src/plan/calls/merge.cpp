// The calls of a merge.
#include "onepass/merge.hpp"

#include <span>
#include <vector>

#include "plan/calls/call.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

Call call_from(const MergeTensors& t) {
  Call c{kMerge, {}};
  c.tensors.outs = t.outs, c.tensors.lses = t.lses;
  c.tensors.out = t.out, c.tensors.lse = t.lse;
  return c;
}

}  // namespace

void merge(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses, const Tensor& out, const Tensor& lse,
           const Launch& launch) {
  plan::compute(call_from(MergeTensors{{outs.begin(), outs.end()}, {lses.begin(), lses.end()}, out, lse}), launch);
}
// A merge of results that have no columns.
void merge_lse(std::span<const ConstTensor> lses, const Tensor& lse, const Launch& launch) {
  const auto without_columns = [](auto t) {
    want(t.rank >= 1 && t.rank < kMaxRank, ErrorCode::bad_shape, "an LSE must have 1 to 3 dimensions (got ", t.rank,
         ")");
    t.shape[t.rank] = 0;
    t.stride[t.rank++] = 1;
    t.data = nullptr;
    return t;
  };
  want(!lses.empty(), ErrorCode::bad_value, "lses must hold at least one LSE (got none)");
  std::vector<ConstTensor> outs;
  outs.reserve(lses.size());
  for (const ConstTensor& t : lses) outs.push_back(without_columns(t));
  merge(outs, lses, without_columns(lse), lse, launch);
}
Plan make_plan(const MergeTensors& tensors, std::string_view implementation, const Executor* executor) {
  return plan::plan_of(call_from(tensors), implementation, executor);
}
void run(const Plan& plan, const MergeTensors& tensors, const Launch& launch) {
  run(plan, call_from(tensors).tensors, launch);
}
std::string explain(const MergeTensors& tensors) { return plan::explained(call_from(tensors)); }

}  // namespace onepass::inline v0
