// The host half that backward kernels of all architectures share: features, the workspace, a call's parameters, and the
// kernels in front of and behind a family's own.
#pragma once
#include "cuda/attention/backward/backward.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"

namespace onepass::cuda {

BackwardFeatures backward_features_of(const Problem& problem);
// Text in front of a backward kernel's source: `backward_features`, `backward_shape`, and with them `forward_features`
// and `features`.
std::string backward_source(const BackwardFeatures& features, const BackwardShape& shape);

// pre: statistics, zeros. post: dQ from its sums; sums: the device source with the family's sum_tile. sums: dsinks and
// dslopes. arch: "sm_80".
struct BackwardPrograms {
  KernelProgram pre, post, sums;
};
BackwardPrograms backward_programs(const BackwardFeatures& features, const BackwardShape& shape,
                                   const std::string& sum_tile, const std::string& arch, const std::string& mods);
int pre_shared_bytes();

// Packed boolean masks of a backward pass: 64 rows and 32 keys a tile.
inline constexpr TileShape kMaskTile{64, 32, 4};

// Places within the workspace, in bytes; total: of it.
struct BackwardWorkspace {
  std::size_t statistics, dq_sums, sink_parts, slope_parts, marks, order, turns, zeros, broken_keys, mask, total;
};
BackwardWorkspace workspace_of(const Problem& problem, const BackwardFeatures& features, const BackwardShape& shape);

// A launch's parameters but for what a call brings.
BackwardParams decided_backward(const Problem& problem, const BackwardShape& shape, int l2_bytes);
// The addresses of a call. `workspace`: of places.total bytes.
void bind_backward(BackwardParams& params, const Tensors& tensors, void* workspace, const BackwardWorkspace& places);

// CTAs that the pre and the post kernel have, and the kernel of the sums.
std::int64_t row_blocks(const BackwardParams& params);
std::int64_t post_blocks(const BackwardParams& params, const BackwardShape& shape);
unsigned sum_blocks(const BackwardParams& params);

// The parts that the states of all backward kernels have: launch parameters, the packed mask, and the kernels in front
// of and behind a family's own.
class BackwardLaunch {
 public:
  // callers: the problem that `problem` is the packed_problem() of. sum_tile: the device source with the family's.
  BackwardLaunch(Kernels& kernels, const std::shared_ptr<const Problem>& problem,
                 const std::shared_ptr<const Problem>& callers, const DeviceFacts& device,
                 const BackwardFeatures& features, const BackwardShape& shape, const char* sum_tile);

  // The parameters of a call, behind the launches of the mask's packing and of the pre kernel.
  BackwardParams begin(const Call& call) const;
  // The launches of the post kernel and of the sums.
  void finish(const Call& call, BackwardParams& params) const;
  const char* order() const;  // of the sums of dQ, for describe()

  const BackwardFeatures features;
  const BackwardShape shape;
  const BackwardParams decided;
  const std::int64_t rows;       // CTAs of the pre kernel
  const std::int64_t key_tiles;  // of block_k keys of each head of K and V; an upper bound if packed
  const bool early;  // a kernel that knows how is launched early (cuda::launch) behind another kernel of the call
  std::size_t workspace_bytes() const { return places_.total; }

 private:
  const BackwardWorkspace places_;
  const std::int64_t repair_blocks_;  // the least CTAs of the post kernel: all of them repair marked keys
  const PackedMask mask_;
  const PlannedKernel *pre_, *post_ = nullptr, *sums_ = nullptr;  // null: there is none
};

// The plan of a family: its State of the config that it has on the problem's device.
template <class State, class ConfigOn>
Decision plan_backward(const Request& request, const ConfigOn& config_on) {
  return plan_on_device<State>(request, [&](const DeviceFacts& device, const Problem&) {
    const std::shared_ptr<const Problem> seen = packed_problem(request.problem);
    return config_on(device, *seen, backward_features_of(*seen));
  });
}

}  // namespace onepass::cuda
