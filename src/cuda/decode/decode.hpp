// Decoding on compute capability 8.0 and later, at most kMaxRows rows per K/V head, and prompts beside fp8_e4m3 keys:
// the host half of decode.cuh.
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

// Rows of a K/V head that a row of the list of implementations supports: at most kMaxRows (with batch_invariant any
// number), or any number beside fp8_e4m3 k and v.
enum class Rows { few, any_fp8 };

// The config of a problem for CTAs of at most `shared_bytes`, but for `even`, which is up to the number of
// multiprocessors. hopper: the device has wgmma.
Selected<DecodeConfig> select_config(const Problem& problem, int shared_bytes, bool hopper = false,
                                     Rows rows = Rows::few);
// A config for prompts with the bits of `c`, one of few rows: warps of sixteen rows with all of their keys
// (one_result/). None where shared memory is too small.
inline constexpr int kMaxPromptWarps = 12;
std::optional<DecodeConfig> for_prompts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int warps);
// A config of FP8 prompts with one team for as many rows as its warps hold. None where shared memory is too small.
std::optional<DecodeConfig> in_large_blocks(const ForwardFeatures& features, DecodeConfig c, int shared_bytes);
// The problem's score_mod and mask_mod, and the mask_mod's bounds: which tiles are not read.
std::string mods_of(const Problem& problem);
// arch: "sm_80"; mods: mods_of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const DecodeConfig& config, const std::string& arch,
                               const std::string& mods = {});

// Its sequences' rows are at most part.most_rows, if that is not 0; the problem's may be more.
Decision plan(const Request& request, const cuda::Part& part);
Decision plan_fp8(const Request& request, const cuda::Part& part);  // Rows::any_fp8
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
extern const Implementation kFp8Implementation;

}  // namespace onepass::decode
