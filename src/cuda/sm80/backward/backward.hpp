// The backward pass by mma.sync, for compute capability 8.0 and later: the host half of backward.cuh.
#pragma once
#include <vector>

#include "cuda/attention/backward/host.hpp"
#include "cuda/sm80/backward/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::sm80 {

// The config of a problem, by the table: the first row that computes it and fits `shared_bytes` a CTA.
Selected<BackwardConfig> select_config(const Problem& problem, const BackwardFeatures& features, int shared_bytes);
// The same on a device, which must be of compute capability 8.0 or later.
Selected<BackwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& problem,
                                   const BackwardFeatures& features);
BackwardShape shape_of(const Problem& problem, const BackwardConfig& config);
// The program of the kernel by keys, or of the kernel for the bias's gradient. arch: "sm_80"; mods: cuda::mods_source
// of the problem.
cuda::KernelProgram program_of(const BackwardFeatures& features, const BackwardShape& shape,
                               const BackwardConfig& config, const std::string& arch, const std::string& mods = {},
                               bool bias = false);
// The gradients of each launch of the kernel by keys: dV has its own launch if there are no registers for both sums.
std::vector<BackwardFeatures> parts_of(const BackwardFeatures& features);
std::int64_t bias_tiles(const BackwardParams& params, const BackwardConfig& config);

// The device source with this family's sum_tile.
inline constexpr const char* kSumTile = "cuda/sm80/backward/sums.cuh";

extern const Implementation kBackwardImplementation;

}  // namespace onepass::sm80
