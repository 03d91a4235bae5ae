// The choice of a decoding kernel's config.
#pragma once
#include <optional>

#include "cuda/attention/host.hpp"
#include "cuda/decode/config/requirements.hpp"
#include "cuda/decode/decode_config.hpp"
#include "problem/selected.hpp"

namespace onepass::decode {

// The config of a problem for CTAs of at most `shared_bytes`, but for `even`, which is up to the number of
// multiprocessors. hopper: the device has wgmma.
Selected<DecodeConfig> select_config(const Problem& problem, int shared_bytes, bool hopper = false,
                                     Rows rows = Rows::few);

// Gives the config as many slots as shared memory holds: at most 8, in steps of `step`, at least `least`. False where
// the least do not fit.
inline constexpr int kMinSlots = 2;
bool fill_slots(const ForwardFeatures& features, DecodeConfig& config, int shared_bytes, int least = kMinSlots,
                int step = 1);
// CTAs of the config that share a multiprocessor.
int blocks_at_once(const ForwardFeatures& features, const DecodeConfig& config, int shared_bytes);

// A config for prompts with the bits of `c`, one of few rows: warps of sixteen rows with all of their keys
// (one_result/). None where shared memory is too small.
inline constexpr int kMaxPromptWarps = 12;
std::optional<DecodeConfig> for_prompts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int warps);
// The prompts' config for a problem: with the number of warps that is fastest for it. None where shared memory is too
// small.
std::optional<DecodeConfig> for_prompts(const Problem& problem, const DecodeConfig& c, int shared_bytes);
// A config of FP8 prompts with one team for as many rows as its warps hold. None where shared memory is too small.
std::optional<DecodeConfig> in_large_blocks(const ForwardFeatures& features, DecodeConfig c, int shared_bytes);
// True if the problem's rows fill a GPU in blocks of 256.
bool fills_large_blocks(const Problem& problem);

}  // namespace onepass::decode
