// The host half that backward kernels of all architectures share: features, the workspace, a call's parameters, and the
// kernels in front of and behind a family's own.
#pragma once
#include "cuda/attention/backward.hpp"
#include "cuda/attention/host.hpp"

namespace onepass::cuda {

// Text in front of a backward kernel's source: `backward_features`, `backward_shape`, and with them `forward_features`
// and `features`.
std::string backward_source(const BackwardFeatures& features, const BackwardShape& shape);

// pre: statistics, zeros. post: dQ from its sums; sums: the device source with the family's sum_place. sums: dsinks and
// dslopes. arch: "sm_80".
struct BackwardPrograms {
  KernelProgram pre, post, sums;
};
BackwardPrograms backward_programs(const BackwardFeatures& features, const BackwardShape& shape,
                                   const std::string& sum_place, const std::string& arch, const std::string& mods);
int pre_shared_bytes();
int post_shared_bytes(const BackwardShape& shape);

// Packed boolean masks of a backward pass: 64 rows and 32 keys a tile.
inline constexpr TileShape kMaskTile{64, 32, 4};

// Places within the workspace, in bytes; total: of it.
struct BackwardWorkspace {
  std::size_t statistics, dq_sums, sink_parts, slope_parts, turns, fallback, mask, total;
};
// key_warps: of sixteen keys, in a block of keys; each may have rows to compute again.
BackwardWorkspace workspace_of(const Problem& problem, const BackwardFeatures& features, const BackwardShape& shape,
                               int key_warps);

// A launch's parameters but for what a call brings; its addresses are bind_backward's.
BackwardParams decided_backward(const Problem& problem, const BackwardFeatures& features, const BackwardShape& shape,
                                int l2_bytes);

}  // namespace onepass::cuda
