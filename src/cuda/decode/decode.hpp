// Decoding on compute capability 8.0 and later, at most kMaxRows rows per K/V head, and prompts beside fp8_e4m3 keys:
// the host half of decode.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/decode/config/select.hpp"
#include "cuda/decode/decode_config.hpp"
#include "cuda/decode/split_policy.hpp"
#include "cuda/host/tensor_map.hpp"
#include "problem/implementation.hpp"

namespace onepass::decode {

// The problem's score_mod and mask_mod, and the mask_mod's bounds: which tiles are not read.
std::string mods_of(const Problem& problem);
// arch: "sm_80"; mods: mods_of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const DecodeConfig& config, const std::string& arch,
                               const std::string& mods = {});

// Its sequences' rows are at most part.most_rows, if that is not 0; the problem's may be more.
Decision plan(const Request& request, const cuda::Part& part);
Decision plan_fp8(const Request& request, const cuda::Part& part);  // Rows::any_fp8
DecodeParams decided_params(const Problem& problem, const DecodeConfig& config, const Sharing& sharing,
                            const Share& share, const cuda::Part& part = {});

// K and V as TMA reads them, where warps copy.
struct KeyMaps {
  cuda::TensorMap k_map, v_map;
};
struct CopiedParams : KeyMaps, DecodeParams {};
struct KeyMapShapes {
  bool keys = false;  // else K and V have no address, and q's stands for theirs
  cuda::TensorMapShape k, v;
  KeyMaps at(const DecodeParams& params, cuda::MapTensor map_tensor) const;
};
KeyMapShapes key_maps(const Problem& problem, const DecodeConfig& config);

extern const Implementation kImplementation;
extern const Implementation kFp8Implementation;

}  // namespace onepass::decode
