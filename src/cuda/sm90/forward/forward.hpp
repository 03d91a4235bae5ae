// Forward attention on Hopper: the host half of forward.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/forward/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::sm90 {

// The config of a problem, by the table.
Selected<ForwardConfig> select_config(const Problem& problem);
// The same on a device, which must be a Hopper GPU.
Selected<ForwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& problem);
// The kernel's: of one part of V's columns where the config has several.
ForwardFeatures features_of(const Problem& problem, const ForwardConfig& config);
// The kernel's tensor maps in its parameters' order but for their addresses. Those that it does not read are copies of
// q's.
struct MapShapes {
  cuda::TensorMapShape q, k, v, out, bias;
  std::int64_t dim_v;  // columns of a part of V
  bool keys, stores, reads_bias;
};
MapShapes map_shapes(const Problem& problem, const ForwardConfig& config);
struct TensorMaps {
  cuda::TensorMap q, k, v, out, bias;
};
TensorMaps maps_of(const MapShapes& shapes, const Tensors& tensors, cuda::MapTensor map_tensor, int part = 0);
// mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const ForwardConfig& config,
                               const std::string& mods = {});
Decision plan_forward(const Request& request, const cuda::Part& part);
extern const Implementation kForwardImplementation;

}  // namespace onepass::sm90
