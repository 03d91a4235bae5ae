// Configs for many rows of a K/V head.
#include "algebra/ceil_div.hpp"
#include "cuda/decode/config/select.hpp"
#include "cuda/decode/split_policy.hpp"

namespace onepass::decode {
namespace {

constexpr std::int64_t kLargeBlocks = 200;  // nearly two for each multiprocessor of an H100

// Three warpgroups hide more of their softmax than two (d64 in 0.8 of the time), but have registers for few features,
// and their larger blocks are fewer.
int warps_for_prompts(const Problem& p, const ForwardFeatures& features, const DecodeConfig& c) {
  const AttentionFeatures& f = features.attention;
  const bool many = p.batch * p.heads_kv * ceil_div(rows_of(p), 16 * kMaxPromptWarps) >= kLargeBlocks;
  const bool plain = !f.transforms() && !f.tree && !features.row_max;
  return c.copy_warps != 0 && many && plain ? kMaxPromptWarps : 8;
}

}  // namespace

std::optional<DecodeConfig> for_prompts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int warps) {
  c.prompts = true, c.halves = 1, c.warps = warps, c.row_tiles = 1, c.rows = 16 * c.warps;
  if (!fill_slots(features, c, shared_bytes, 2 * kMinSlots, 2)) return {};  // K and V of a tile together
  return c;
}
std::optional<DecodeConfig> for_prompts(const Problem& p, const DecodeConfig& c, int shared_bytes) {
  const ForwardFeatures features = cuda::features_of(p);
  const auto prompts = for_prompts(features, c, shared_bytes, warps_for_prompts(p, features, c));
  return prompts ? prompts : for_prompts(features, c, shared_bytes, 8);
}

// A prompt of 4k at 8k keys takes 0.88 of the time of blocks of 64 rows.
bool fills_large_blocks(const Problem& p) {
  constexpr std::int64_t kLargeRows = 256;
  return p.batch * p.heads_kv * (rows_of(p) / kLargeRows) >= kLargeBlocks;
}
std::optional<DecodeConfig> in_large_blocks(const ForwardFeatures& features, DecodeConfig c, int shared_bytes) {
  c.share = 1, c.rows = 16 * c.row_tiles * c.warps / c.halves;
  if (!fill_slots(features, c, shared_bytes)) return {};
  return c;
}

}  // namespace onepass::decode
