// Decoding on compute capability 8.0 and later, at most kMaxRows rows per K/V head: the host half of decode.cuh.
#pragma once
#include "core/implementation.hpp"
#include "cuda/decode/decode_config.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/program.hpp"

namespace onepass::decode {

inline constexpr int kMaxRows = 64;  // per K/V head; more are the prefill kernels' (README.md)

// The config of a problem for blocks of threads of at most `shared_bytes`. False, with a sentence in `why`, for what
// the family cannot do.
bool select_config(const Problem& problem, int shared_bytes, DecodeConfig& config, std::string& why);
// arch: "sm_80"; mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const DecodeConfig& config, const std::string& arch,
                               const std::string& mods = {});

// How the work is shared: every group's keys in `splits` parts, or all work in `blocks` equal parts if splits is 0.
struct Share {
  int blocks, splits;
};
Share share_of(const Problem& problem, const DecodeConfig& config, int multiprocessors);
// What a launch takes but for what a call brings.
DecodeParams decided_params(const Problem& problem, const DecodeConfig& config, const Share& share);
std::size_t workspace_bytes_of(const Problem& problem, const DecodeConfig& config, int blocks);
// The addresses of a call; counters stay to be set.
void bind(DecodeParams& params, const Tensors& tensors, void* workspace);
inline constexpr std::size_t kCounterBytes = kMostBlocks * sizeof(unsigned);  // where the workspace begins

const Implementation& implementation();

}  // namespace onepass::decode
