// The tiles of second derivatives on Hopper: one definition for the host and the device half.
#pragma once
#include "cuda/backward_jvp/config.hpp"
#include "cuda/device/pipeline.hpp"
#include "cuda/sm90/blocks.hpp"

namespace onepass::cuda::backward_jvp::sm90 {

using onepass::sm90::column_blocks, onepass::sm90::kBlockColumnBytes, onepass::sm90::kBlockColumns;

// Stages of a pass: of Q or K with its tangent, and of dO or V with its.
struct Stages {
  int left, right;
  ONEPASS_FIELDS(Stages, left, right)
};

struct Config {
  static constexpr int kGroups = 2;  // consumer warpgroups of 64 held tokens each
  int by_rows, by_keys;              // tokens of a streamed block, in the pass over rows of queries and that over keys
  Stages row_stages, key_stages;
  int producer_registers, consumer_registers;  // of a thread; 64 K for 128 producers and 256 consumers

  ONEPASS_FIELDS(Config, by_rows, by_keys, row_stages, key_stages, producer_registers, consumer_registers)
  ONEPASS_HD static constexpr int held() { return 64 * kGroups; }
  ONEPASS_HD static constexpr int threads() { return 128 * (kGroups + 1); }
  ONEPASS_HD constexpr int streamed(bool of_keys) const { return of_keys ? by_keys : by_rows; }
  ONEPASS_HD constexpr Stages stages(bool of_keys) const { return of_keys ? key_stages : row_stages; }
};

// Shared memory of a CTA, in order: held tiles, stages of streamed blocks, the numbers of their rows where these are
// queries, barriers. A tile lies as [columns / 64][tokens][128 bytes], its tangent behind it.
struct Layout {
  PipelineLayout held, left, right;
  int held_right;              // within what is held: dO or V
  int numbers, numbers_bytes;  // of a stage of dO: four of each row
  int total;
};
ONEPASS_HD constexpr Layout layout_of(const PlainBackwardFeatures& f, const Config& c, bool of_keys) {
  const AttentionFeatures& a = f.backward.forward.attention;
  const int qk = column_blocks(a.dim_qk) * kBlockColumnBytes, v = column_blocks(a.dim_v) * kBlockColumnBytes;
  const int held_tensors = of_keys || f.tdout ? 2 : 1, streamed_tensors = !of_keys || f.tdout ? 2 : 1;
  const int block = c.streamed(of_keys);
  const Stages stages = c.stages(of_keys);
  Layout l{};
  l.held_right = 2 * Config::held() * qk;
  l.held = {.data = 0, .bytes = l.held_right + held_tensors * Config::held() * v, .stages = 1};
  l.left = {.data = l.held.data_end(), .bytes = 2 * block * qk, .stages = stages.left};
  l.right = {.data = l.left.data_end(), .bytes = streamed_tensors * block * v, .stages = stages.right};
  l.numbers = l.right.data_end();
  l.numbers_bytes = of_keys ? 16 * block : 0;
  l.held = l.held.with_barriers(l.numbers + stages.right * l.numbers_bytes);
  l.left = l.left.with_barriers(l.held.barriers_end());
  l.right = l.right.with_barriers(l.left.barriers_end());
  l.total = l.right.barriers_end();
  return l;
}

}  // namespace onepass::cuda::backward_jvp::sm90
