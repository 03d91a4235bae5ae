// The tiling of the Hopper backward kernel: one definition for the host and the device half.
#pragma once
#include "cuda/attention/backward.hpp"
#include "cuda/device/pipeline.hpp"

namespace onepass::sm90 {

struct BackwardConfig {
  int block_m;                                 // query rows of a block: 64 or 128
  int producer_registers, consumer_registers;  // of a thread; 64 K for 128 of the one and 256 of the other
  ONEPASS_HD friend constexpr bool operator==(const BackwardConfig&, const BackwardConfig&) = default;
};

// Tiles lie in shared memory as blocks of 128 bytes of columns, the swizzle's width, 1024-byte aligned, one behind the
// other. Two consumer warpgroups have 64 keys each.
constexpr int kBlockColumnBytes = 128, kBlockColumns = kBlockColumnBytes / 2;  // columns: of 16 bits
constexpr int kGroupKeys = 64, kTileKeys = 2 * kGroupKeys;
constexpr int kTileSlotBytes = 64;  // of a KeyTile on its way from the producer to the others

ONEPASS_HD constexpr int column_blocks(int dim) { return padded(dim, kBlockColumns) / kBlockColumns; }

// The warpgroups share a block's dQ by its rows where it has 128 of them, else by columns. How many columns of 64 rows
// each one computes:
ONEPASS_HD constexpr int dq_columns(const BackwardFeatures& features, const BackwardConfig& c) {
  const int dim = features.attention.dim_qk;
  return c.block_m == 128 ? padded(dim, 16) : padded(dim, kBlockColumns) / 2;
}
// Of a block's sums of dQ in global memory, which lie in the order of the accumulators:
// [warpgroup][warp][8 columns][lane][4].
ONEPASS_HD constexpr int dq_block_floats(const BackwardFeatures& features, const BackwardConfig& c) {
  return 2 * 64 * dq_columns(features, c);
}

// Shared memory of a block of threads, in order. K twice: the next tile's comes early.
struct BackwardLayout {
  PipelineLayout k, v, q, dout;
  PipelineLayout ds;        // dS: [2 x 64 keys][rows][128 bytes]
  PipelineLayout dq;        // a part for each warpgroup, on its way to the sums
  int lse, delta;           // of a block's rows, one behind the other for each stage of q, of dout
  int tiles, total;
};
ONEPASS_HD constexpr BackwardLayout layout_of(const BackwardFeatures& features, const BackwardConfig& c) {
  const AttentionFeatures& f = features.attention;
  BackwardLayout l{};
  const int qk = column_blocks(f.dim_qk) * kBlockColumnBytes, v = column_blocks(f.dim_v) * kBlockColumnBytes;
  l.k = {.data = 0, .bytes = kTileKeys * qk, .stages = 2};
  l.v = {.data = l.k.data_end(), .bytes = kTileKeys * v, .stages = 1};
  l.q = {.data = l.v.data_end(), .bytes = c.block_m * qk, .stages = 2};
  l.dout = {.data = l.q.data_end(), .bytes = c.block_m * v, .stages = 2};
  l.ds = {.data = l.dout.data_end(), .bytes = 2 * c.block_m * kBlockColumnBytes, .stages = 2};
  l.dq = {.data = l.ds.data_end(), .bytes = dq_block_floats(features, c) * 2, .stages = 1, .parts = 2};
  l.lse = l.dq.data_end();
  l.delta = l.lse + 2 * c.block_m * 4;
  l.tiles = l.delta + 2 * c.block_m * 4;
  l.k = l.k.with_barriers(l.tiles + 2 * kTileSlotBytes);
  l.v = l.v.with_barriers(l.k.barriers_end());
  l.q = l.q.with_barriers(l.v.barriers_end());
  l.dout = l.dout.with_barriers(l.q.barriers_end());
  l.ds = l.ds.with_barriers(l.dout.barriers_end());
  l.dq = l.dq.with_barriers(l.ds.barriers_end());
  l.total = l.dq.barriers_end();
  return l;
}

}  // namespace onepass::sm90
