// The parts that the states of all forward kernels have: launch parameters, the packed mask, tile counters.
#pragma once
#include <memory>

#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"

namespace onepass::cuda {

class ForwardLaunch {
 public:
  // callers: the problem that `problem` is the packed_problem() of.
  ForwardLaunch(Kernels& kernels, const Problem& problem, const DeviceFacts& device, const TileShape& tile,
                const std::shared_ptr<const Problem>& callers, const Part& part = {})
      : decided(decided_forward(problem, tile, device.l2_bytes, part)),
        workspace_bytes(decided.tiles == 0 ? 0 : forward_workspace_bytes(problem, tile)),
        mask_at_(mask_place(problem, tile)),
        mask_(kernels, problem, tile, callers) {}

  // The parameters of a call, whose mask is packed in front of the launch.
  EntropyParams params(const Call& call) const {
    EntropyParams params = decided;
    bind(params, call.tensors, call.workspace);
    params.counters = tile_counters(call);
    mask_.pack(call, static_cast<std::byte*>(call.workspace) + mask_at_, params.mask);
    return params;
  }

  const EntropyParams decided;
  const std::size_t workspace_bytes;

 private:
  const std::size_t mask_at_;
  const PackedMask mask_;
};

}  // namespace onepass::cuda
