// Shared by whole emulated backward passes of all families: a call's workspace and parameters, and what it has
// written.
#pragma once
#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/attention/backward/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "mask_patterns.hpp"
#include "on_host/whole_kernel.hpp"
#include "problem/roles.hpp"

namespace onepass {

struct EmulatedCall {
  // all_mixed: every tile of the mask counts as one with a visible key, so that none is left out.
  EmulatedCall(check::Inputs& inputs, const BackwardFeatures& f, const BackwardShape& s, bool early,
               bool all_mixed = false)
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
      const std::size_t tiles = cuda::mask_bytes(p, cuda::kMaskTile, s.mask_fragments) -
                                static_cast<std::size_t>(plan.tiles_at) * sizeof(unsigned);
      if (all_mixed) std::fill_n(plan.pack.tiles, tiles, kSomeMasked);
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

  // The turns that tiles of keys have taken at the sums of a deterministic call.
  std::int64_t turns() const {
    return std::accumulate(params.order, params.order + cuda::row_blocks(params), std::int64_t{0});
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

// The bits of a deterministic call are those of a call that leaves no tile out, in fewer turns.
// run(inputs, all_mixed, turns): the outputs' bytes.
template <class Run>
void expect_the_bits_of_all_tiles(const Problem& p, std::uint64_t seed, const Run& run) {
  for (const char* name : {"sparse blocks", "nothing"}) {
    const auto* const pattern =
        std::ranges::find(test::kMaskPatterns, std::string_view(name), &test::MaskPattern::name);
    check::Inputs inputs = check::make_inputs(p, seed);
    test::fill_mask(inputs.tensors.bool_mask, *pattern);
    inputs.changed();
    std::int64_t turns = 0, of_all = 0;
    const std::string left_out = run(inputs, false, turns);
    EXPECT_TRUE(left_out == run(inputs, true, of_all)) << name;
    EXPECT_LT(turns, of_all) << name;
    if (name == std::string_view("nothing")) {
      EXPECT_EQ(turns, 0);
    }
  }
}

}  // namespace onepass
