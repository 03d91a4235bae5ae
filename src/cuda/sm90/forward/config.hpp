// The tiling of the Hopper kernel: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"
#include "cuda/device/pipeline.hpp"
#include "cuda/sm90/blocks.hpp"

namespace onepass::sm90 {

struct ForwardConfig {
  int groups;            // consumer warpgroups, 64 query rows each
  int v_groups;          // warpgroups that hold the same rows: each computes S, and its part of O's columns
  int block_n;           // keys per block
  int stages, q_stages;  // K/V blocks and Q tiles in flight
  bool cross_tile;       // the next tile's first S rides ahead of this tile's last P V
  bool ping_pong;        // warpgroups take turns at issuing matrix products
  bool q_registers;      // Q as register fragments
  bool column_groups;    // border blocks are masked, and a tile's first block is read, by groups of columns
  bool early_softmax;    // with cross_tile: a tile's first softmax runs under the last P V of the tile before
  int bias_stages;       // tiles of the additive bias in flight for each warpgroup; 0: none, or read element by element
  int page_rows;         // keys that one load takes of a page; 0: K and V are not paged
  bool whole_pages;      // they are all that the page has
  int incoming_stages;   // e4m3: blocks of V as it comes, to be transposed, or of K and V, to be converted; else 0
  int promote;           // e4m3: blocks between additions of O to an fp32 sum; 0: none
  bool block_scales;     // k and v are e4m3 and have a factor for every 128 keys
  int v_parts;           // launches, each with its part of V's columns
  int producer_registers, consumer_registers;  // of a thread; 64 K for 128 producers and 128 * groups consumers
  ONEPASS_HD constexpr int key_rows() const { return page_rows > 0 ? page_rows : block_n; }  // of a load
  ONEPASS_HD constexpr int block_m() const { return 64 * groups / v_groups; }
  ONEPASS_FIELDS(ForwardConfig, groups, v_groups, block_n, stages, q_stages, cross_tile, ping_pong, q_registers,
                 column_groups, early_softmax, bias_stages, page_rows, whole_pages, incoming_stages, promote,
                 block_scales, v_parts, producer_registers, consumer_registers)
};

// A warpgroup has 64 rows of Q and O, a warp 16 of them.
constexpr int kGroupRows = 64, kGroupBlockBytes = kGroupRows * kBlockColumnBytes;

// Shared memory of a CTA, in order: Q tiles, K blocks, V blocks, V as it comes, O staging, bias tiles (a
// part for each warpgroup), tiles of work, factors, barriers.
struct ForwardLayout {
  PipelineLayout q, k, v, incoming;
  int staging, staging_blocks, staging_bytes;  // of a warpgroup: blocks of O's columns that leave together
  PipelineLayout bias;
  int tiles, scales;  // scales: two for each stage of K
  int more, total;    // more: the contents of each incoming stage, and their scale
};

// Columns of O that a warpgroup computes. Parts of V begin with a block of columns; the last may end with zeros.
ONEPASS_HD constexpr int out_columns(int dim_v, const ForwardConfig& c) {
  return c.v_groups == 1 ? round_up(dim_v, 16) : round_up(ceil_div(dim_v, c.v_groups), kBlockColumns);
}
ONEPASS_HD constexpr int value_blocks(const AttentionFeatures& f, ScalarType type, const ForwardConfig& c) {
  return c.v_groups == 1 ? column_blocks(f.dim_v, type) : c.v_groups * column_blocks(out_columns(f.dim_v, c), type);
}

// V^T's rows: one swizzle's width of keys.
ONEPASS_HD constexpr int transposed_width(int block_n) {
  return block_n % 128 == 0 ? 128 : block_n % 64 == 0 ? 64 : 32;
}
ONEPASS_HD constexpr ForwardLayout layout_of(const ForwardFeatures& features, const ForwardConfig& c) {
  const AttentionFeatures& f = features.attention;
  ForwardLayout l{};
  const bool fp8 = f.input == ScalarType::e4m3;
  const int qk = column_blocks(f.dim_qk, f.input), v = value_blocks(f, f.input, c),
            out = column_blocks(out_columns(f.dim_v, c));
  l.q = {.data = 0, .bytes = c.block_m() * qk * kBlockColumnBytes, .stages = c.q_stages};
  l.k = {.data = l.q.data_end(), .bytes = c.block_n * qk * kBlockColumnBytes, .stages = c.stages};
  l.v = {.data = l.k.data_end(),
         .bytes = fp8 ? round_up(c.block_n * round_up(f.dim_v, 16), 1024) : c.block_n * v * kBlockColumnBytes,
         .stages = c.stages};
  const int incoming_k = fp8 ? 0 : column_blocks(f.dim_qk, f.keys), incoming_v = column_blocks(f.dim_v, f.keys),
            incoming = incoming_k > incoming_v ? incoming_k : incoming_v;
  l.incoming = {.data = l.v.data_end(), .bytes = c.block_n * incoming * kBlockColumnBytes, .stages = c.incoming_stages};
  l.staging = l.incoming.data_end();
  l.staging_blocks = c.v_groups > 1 ? 1 : out == 4 ? 2 : out;
  l.staging_bytes = l.staging_blocks * kGroupBlockBytes;
  l.bias = {.data = l.staging + c.groups * l.staging_bytes,
            .bytes = kGroupRows * c.block_n * bytes_of(f.bias),
            .stages = c.bias_stages,
            .parts = c.groups};
  l.tiles = l.bias.data_end();
  l.scales = l.tiles + c.q_stages * kTileSlotBytes;
  l.more = l.scales + (f.keys == ScalarType::e4m3 ? 8 * c.stages : 0);
  l.q = l.q.with_barriers(round_up(l.more + 8 * c.incoming_stages, 8));
  l.k = l.k.with_barriers(l.q.barriers_end());
  l.v = l.v.with_barriers(l.k.barriers_end());
  l.bias = l.bias.with_barriers(l.v.barriers_end());
  l.incoming = l.incoming.with_barriers(l.bias.barriers_end());
  l.total = l.incoming.barriers_end();
  return l;
}

}  // namespace onepass::sm90
