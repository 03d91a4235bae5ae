// Second derivatives on Hopper: the host half of rows.cuh and keys.cuh.
#pragma once
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/backward_jvp/sm90/config.hpp"
#include "cuda/host/tensor_map.hpp"

namespace onepass::cuda::backward_jvp::sm90 {

using Plan = PlanOf<Config>;
Selected<Plan> select_plan(const Problem& problem);  // by the table
KernelProgram program_of(bool keys, const Plan& plan, const std::string& arch, const std::string& mods);
int shared_bytes_of(bool keys, const Plan& plan);

// The tensor maps of a kernel in their order there, but for their addresses.
struct MapShapes {
  TensorMapShape q, tq, k, tk, v, tv, dout, tdout;
  bool queries, keys, tangent_of_dout;  // there are some
};
MapShapes map_shapes(bool keys, const Problem& problem, const Config& config);
struct Maps {
  TensorMap q, tq, k, tk, v, tv, dout, tdout;
};
// The map of a tensor without tokens, or of a tdO that is not given, is another tensor's.
Maps maps_of(const MapShapes& shapes, const Tensors& tensors, MapTensor map_tensor);

extern const Implementation kImplementation;

}  // namespace onepass::cuda::backward_jvp::sm90
