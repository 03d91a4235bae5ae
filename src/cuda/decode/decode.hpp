// Decoding on compute capability 8.0 and later, at most kMaxRows rows per K/V head: the host half of decode.cuh.
#pragma once
#include <optional>

#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/decode/decode_config.hpp"
#include "cuda/decode/split_policy.hpp"
#include "cuda/host/tensor_map.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::decode {

// The config of a problem for CTAs of at most `shared_bytes`, but for `even`, which is up to the number of
// multiprocessors. hopper: the device has wgmma.
Selected<DecodeConfig> select_config(const Problem& problem, int shared_bytes, bool hopper = false);
// A config for prompts with the bits of `c`, one of few rows: warps of sixteen rows with all of their keys
// (one_result/). None where shared memory is too small.
inline constexpr int kMaxPromptWarps = 12;
std::optional<DecodeConfig> for_prompts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int warps);
// The problem's score_mod and mask_mod, and the mask_mod's bounds: which tiles are not read.
std::string mods_of(const Problem& problem);
// arch: "sm_80"; mods: mods_of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const DecodeConfig& config, const std::string& arch,
                               const std::string& mods = {});

// Its sequences' rows are at most part.most_rows, if that is not 0; the problem's may be more.
Decision plan(const Request& request, const cuda::Part& part);
// heads: K/V heads whose CTAs read a cache together (heads_together).
Sharing sharing_of(const Problem& problem, const DecodeConfig& config, int heads = 1);
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

}  // namespace onepass::decode
