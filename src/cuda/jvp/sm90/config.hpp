// The tiling of the kernel on Hopper: one definition for the host and the device half.
#pragma once
#include "cuda/device/pipeline.hpp"
#include "cuda/jvp/jvp_params.hpp"
#include "cuda/sm90/blocks.hpp"

namespace onepass::cuda::jvp::sm90 {

using onepass::sm90::column_blocks, onepass::sm90::kBlockColumnBytes, onepass::sm90::kBlockColumns,
    onepass::sm90::kTileSlotBytes;

struct Config {
  int groups;    // consumer warpgroups, 64 query rows each
  int v_groups;  // warpgroups that hold the same rows: each computes S, dS, and its part of the columns of O and tO
  int block_n;   // keys per block
  int stages;    // blocks of K, V and their tangents in shared memory
  int producer_registers, consumer_registers;  // of a thread; 64 K for 128 producers and 128 * groups consumers

  ONEPASS_FIELDS(Config, groups, v_groups, block_n, stages, producer_registers, consumer_registers)
  ONEPASS_HD constexpr int block_m() const { return 64 * groups / v_groups; }
  ONEPASS_HD constexpr int threads() const { return 128 * (groups + 1); }
};

// Shared memory of a CTA, in order, in blocks of 64 columns (sm90/blocks.hpp):
//
//   Q, its tangent       [2][columns / 64][block_m rows]
//   K, its tangent       stages x [2][columns / 64][block_n rows]
//   V, its tangent       likewise
//   O on its way out     sixteen rows for each warp
//   two tiles of work, barriers
struct Layout {
  PipelineLayout q, k, v;
  int staging, staging_bytes;  // of a warp
  int tiles, total;            // tiles: two
};
// Columns of O that a warpgroup computes. Parts of V begin with a block of columns; the last may end with zeros.
ONEPASS_HD constexpr int out_columns(int dim_v, const Config& c) {
  return c.v_groups == 1 ? round_up(dim_v, 16) : round_up(ceil_div(dim_v, c.v_groups), kBlockColumns);
}
ONEPASS_HD constexpr Layout layout_of(const JvpFeatures& features, const Config& c) {
  const AttentionFeatures& f = features.forward.attention;
  const int qk = column_blocks(f.dim_qk), out = column_blocks(out_columns(f.dim_v, c)), v = c.v_groups * out;
  Layout l{};
  l.q = {.data = 0, .bytes = 2 * c.block_m() * qk * kBlockColumnBytes, .stages = 1};
  l.k = {.data = l.q.data_end(), .bytes = 2 * c.block_n * qk * kBlockColumnBytes, .stages = c.stages};
  l.v = {.data = l.k.data_end(), .bytes = 2 * c.block_n * v * kBlockColumnBytes, .stages = c.stages};
  l.staging = l.v.data_end();
  l.staging_bytes = 16 * out * kBlockColumnBytes;
  l.tiles = l.staging + 4 * c.groups * l.staging_bytes;
  l.q = l.q.with_barriers(l.tiles + 2 * kTileSlotBytes);
  l.k = l.k.with_barriers(l.q.barriers_end());
  l.v = l.v.with_barriers(l.k.barriers_end());
  l.total = l.v.barriers_end();
  return l;
}

}  // namespace onepass::cuda::jvp::sm90
