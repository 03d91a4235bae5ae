// Forward mode on Hopper: the host half of jvp.cuh.
#pragma once
#include <string>

#include "cuda/host/tensor_map.hpp"
#include "cuda/jvp/jvp.hpp"
#include "cuda/jvp/sm90/config.hpp"

namespace onepass::cuda::jvp::sm90 {

// The config of a problem, by the table.
Selected<Config> select_config(const Problem& problem);
inline TileShape tile_shape_of(const Config& c) { return {c.block_m(), c.block_n, 0}; }
// mods: cuda::mods_source of the problem, differentiated.
KernelProgram program_of(const JvpFeatures& features, const Config& config, const std::string& mods = {});

// The kernel's tensor maps in their order there, but for their addresses. Those that it does not read are copies of
// q's.
struct MapShapes {
  TensorMapShape q, tq, k, tk, v, tv, out, tout;
  bool keys, stores;
};
MapShapes map_shapes(const Problem& problem, const Config& config);
struct Maps {
  TensorMap q, tq, k, tk, v, tv, out, tout;
};
Maps maps_of(const MapShapes& shapes, const Tensors& tensors, MapTensor map_tensor);

extern const Implementation kImplementation;

}  // namespace onepass::cuda::jvp::sm90
