// Attention backward on Hopper: the host half of backward.cuh and split.cuh.
#pragma once
#include "cuda/attention/backward/host.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/backward/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::sm90 {

// The config of a problem.
Selected<BackwardConfig> select_config(const Problem& problem, const BackwardFeatures& features);
// The same on a device, which must be a Hopper GPU.
Selected<BackwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& problem,
                                   const BackwardFeatures& features);
BackwardShape shape_of(const Problem& problem, const BackwardConfig& config);
// True if a call of some length has its sums of dQ filled with zeros by this kernel, not by the pre kernel.
bool may_zero(const Problem& problem, const BackwardFeatures& features, const BackwardConfig& config);
// Where config.guarded: that of the other kernel, for values that are not finite.
BackwardConfig careful_of(BackwardConfig config);
// The kernel's tensor maps in its parameters' order but for their addresses. Those that it does not read are copies of
// k's.
struct BackwardMapShapes {
  cuda::TensorMapShape q, k, v, dout, bias, dbias;
  bool queries, bias_tiles, dbias_tiles;  // there are some
};
BackwardMapShapes map_shapes(const Problem& problem, const BackwardConfig& config);
struct BackwardMaps {
  cuda::TensorMap q, k, v, dout, bias, dbias;
};
BackwardMaps maps_of(const BackwardMapShapes& shapes, const Tensors& tensors, cuda::MapTensor map_tensor);
// True if the kernel writes every element of dbias; otherwise they are set to zero before it.
bool writes_all_dbias(const BackwardFeatures& features, const BackwardConfig& config);
// How many heads of K and V are worked on at once, and how many of the last ones as one group.
void set_head_groups(BackwardParams& params, const Problem& problem, const BackwardConfig& config, int multiprocessors,
                     int l2_bytes);
// The tiles of work: an upper bound if packed.
std::int64_t tiles_of(const Problem& problem, const BackwardConfig& config);
// mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const BackwardFeatures& features, const BackwardShape& shape,
                               const BackwardConfig& config, const std::string& mods = {});
// The device source with this family's sum_tile.
inline constexpr const char* kSumTile = "cuda/sm90/backward/sums.cuh";

extern const Implementation kBackwardImplementation;

}  // namespace onepass::sm90
