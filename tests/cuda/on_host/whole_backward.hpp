// Shared by whole emulated backward passes of all families: a call's workspace and parameters, and what it has
// written.
#pragma once
#include <string>
#include <vector>

#include "cuda/attention/backward/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "on_host/whole_kernel.hpp"
#include "problem/roles.hpp"

namespace onepass {

struct EmulatedCall {
  EmulatedCall(check::Inputs& inputs, const BackwardFeatures& f, const BackwardShape& s, bool early)
      : inputs_(inputs),
        features_(f),
        shape_(s),
        places_(cuda::workspace_of(inputs.problem, f, s)),
        workspace_(places_.total / 4 + 16, 0xffffffff),
        params(cuda::decided_backward(inputs.problem, s, 50 << 20)) {
    const Problem& p = inputs.problem;
    cuda::bind_backward(params, inputs.tensors, workspace_.data(), places_);
    params.counters = counters_;
    if (p.bool_mask) {
      const cuda::MaskPlan plan =
          cuda::plan_mask(p, cuda::kMaskTile, s.mask_fragments)
              .at(inputs.tensors.bool_mask.data, reinterpret_cast<std::byte*>(workspace_.data()) + places_.mask);
      warps::pack(&plan.pack);
      params.mask = plan.bits;
      params.mask_fragments = plan.pack.fragments;
    }
    warps::copies_are_early = early;
    warps::backwards = early;
    inputs.poison_outputs();
  }
  EmulatedCall(const EmulatedCall&) = delete;

  // A family's own kernels stand between the shared ones. The outputs' bytes.
  template <class Kernel, class Own>
  std::string run(const Kernel& kernel, const Own& own) {
    const auto rows = static_cast<unsigned>(cuda::row_blocks(params));
    if (shape_.careful) params.notes->careful_call = params.call;  // whatever the pre kernel finds
    kernel.pre(&params, rows);
    own();
    if (features_.dq || features_.dk || features_.dv)
      kernel.post(&params, static_cast<unsigned>(cuda::post_blocks(params, shape_)));
    if (features_.dsinks || features_.dslopes) kernel.sums(&params, cuda::sum_blocks(params));
    EXPECT_EQ(counters_[0] + counters_[1], 0u) << "the counters are not as they were found";
    std::string bytes;
    for (const RoleRow& row : kRoleTable) {
      if (!is_asked(inputs_.problem.gradients, row.role)) continue;
      const check::Buffer& b = inputs_.buffer(row.role);
      bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
    }
    return bytes;
  }

 private:
  check::Inputs& inputs_;
  const BackwardFeatures& features_;
  const BackwardShape& shape_;
  const cuda::BackwardWorkspace places_;
  std::vector<unsigned> workspace_;
  unsigned counters_[2] = {0, 0};

 public:
  BackwardParams params;
};

}  // namespace onepass
