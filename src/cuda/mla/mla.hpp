// Decoding with absorbed multi-head latent attention (576/512, v in k) on compute capability 9.0: the host half of
// mla.cuh.
#pragma once
#include "cuda/compile/program.hpp"
#include "cuda/decode/split_policy.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/mla/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::decode {

Selected<MlaConfig> select_mla(const Problem& problem);
cuda::KernelProgram mla_program(const ForwardFeatures& features, const MlaConfig& config);
cuda::KernelProgram mla_merge_program(const ForwardFeatures& features, const MlaConfig& config, bool many);
bool many_parts(const Problem& problem, const MlaConfig& config, const Share& share);  // of a group
unsigned merge_grid(const Problem& problem, const MlaConfig& config);
Sharing sharing_of(const Problem& problem, const MlaConfig& config);
DecodeParams decided_params(const Problem& problem, const MlaConfig& config, const Share& share);
// The map of K but for its address.
struct MlaMap {
  cuda::TensorMapShape shape;
  bool keys;  // else K has no address, and q's stands for it
  cuda::TensorMap at(const Tensors& t, cuda::MapTensor map_tensor) const {
    return map_tensor(keys ? t.k.data : t.q.data, shape);
  }
};
MlaMap mla_map(const Problem& problem, const MlaConfig& config);

extern const Implementation kMlaImplementation;

}  // namespace onepass::decode
