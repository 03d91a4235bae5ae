// Forward attention on Hopper: the host half of forward.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/forward/config.hpp"
#include "problem/implementation.hpp"

namespace onepass::sm90 {

// The config of a problem, by the table. False, with a sentence in `why`, for what the family cannot do.
bool select_config(const Problem& problem, ForwardConfig& config, std::string& why);
// The same on a device, which must be a Hopper GPU.
bool config_on(const cuda::DeviceFacts& device, const Problem& problem, ForwardConfig& config, std::string& why);
// The kernel's: of one part of V's columns where the config has several.
ForwardFeatures features_of(const Problem& problem, const ForwardConfig& config);
// The kernel's tensor maps in its parameters' order; those it does not read are copies of q's. map_tensor:
// cuda::tensor_map.
struct TensorMaps {
  cuda::TensorMap q, k, v, out, bias;
};
using MapTensor = decltype(&cuda::tensor_map);
TensorMaps maps_of(const Problem& problem, const Tensors& tensors, const ForwardConfig& config, MapTensor map_tensor,
                   int part = 0);
// mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const ForwardConfig& config,
                               const std::string& mods = {});
Decision plan_forward(const Request& request, const cuda::Part& part);
const Implementation& forward_implementation();

}  // namespace onepass::sm90
