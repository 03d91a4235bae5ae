// The parts that the states of the forward mode's kernels have.
#pragma once
#include <memory>

#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/jvp/jvp.hpp"

namespace onepass::cuda::jvp {

// The part of a call that all kernels of the family share: parameters and the packed mask.
class Launch {
 public:
  Launch(Kernels& kernels, const Problem& problem, const DeviceFacts& device, const TileShape& tile,
         const std::shared_ptr<const Problem>& callers)
      : decided(decided_jvp(problem, tile, device.l2_bytes)),
        workspace_bytes(decided.tiles == 0 ? 0 : forward_workspace_bytes(problem, tile)),
        mask_at_(mask_place(problem, tile)),
        mask_(kernels, problem, tile, callers) {}

  JvpParams params(const Call& call) const {
    JvpParams params = decided;
    bind_jvp(params, call.tensors, call.workspace);
    params.counters = tile_counters(call);
    mask_.pack(call, static_cast<std::byte*>(call.workspace) + mask_at_, params.mask);
    return params;
  }

  const JvpParams decided;
  const std::size_t workspace_bytes;

 private:
  const std::size_t mask_at_;
  const PackedMask mask_;
};

}  // namespace onepass::cuda::jvp
