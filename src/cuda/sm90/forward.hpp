// Forward attention on Hopper: the host half of forward.cuh.
#pragma once
#include "core/implementation.hpp"
#include "cuda/host/program.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/forward_config.hpp"

namespace onepass::sm90 {

// The config of a problem, by the table. False, with a sentence in `why`, for what the family cannot do.
bool select_config(const Problem& problem, ForwardConfig& config, std::string& why);
// With the bias staged by TMA or not.
bool select_config(const Problem& problem, bool staged_bias, ForwardConfig& config, std::string& why);
// The same, and its device must be there and be a Hopper GPU.
bool config_for(const Problem& problem, ForwardConfig& config, std::string& why);
// Whether TMA can read the bias of a call; select_config without it asks as if the tensor were contiguous.
bool stages_bias(const Problem& problem, const Arguments& arguments);
// The kernel's tensor maps in its parameters' order; those it does not read are copies of q's. map_tensor:
// cuda::tensor_map.
struct TensorMaps {
  cuda::TensorMap q, k, v, out, bias;
};
using MapTensor = decltype(&cuda::tensor_map);
TensorMaps maps_of(const Problem& problem, const Arguments& arguments, const ForwardConfig& config, bool staged,
                   MapTensor map_tensor);
// mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const ForwardConfig& config,
                               const std::string& mods = {});
const Implementation& forward_implementation();

}  // namespace onepass::sm90
