// How the Hopper kernel is cut: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass::sm90 {

struct ForwardConfig {
  int groups;            // consumer warpgroups, 64 query rows each
  int block_n;           // keys per block
  int stages, q_stages;  // K/V blocks and Q tiles in flight
  bool flat;             // the next tile's first S rides ahead of this tile's last P V
  bool ping_pong;        // warpgroups take turns at issuing matrix products
  bool q_registers;      // Q as register fragments
  int bias_stages;       // tiles of the additive bias in flight for each warpgroup; 0: none, or read element by element
  int producer_registers, consumer_registers;
  ONEPASS_HD friend constexpr bool operator==(const ForwardConfig&, const ForwardConfig&) = default;
};

// Shared memory of a block of threads, in order: Q tiles, K blocks, V blocks, O staging, bias tiles, tile slots,
// barriers. Blocks of 64 columns (128 bytes, the swizzle's width) lie behind each other, each 1024-byte aligned.
struct ForwardLayout {
  int q_bytes, k_bytes, v_bytes, stage_blocks, stage_bytes, bias_bytes;
  int q, k, v, stage, bias, slots, barriers, total;
};
constexpr int kSlotBytes = 64;
ONEPASS_HD constexpr ForwardLayout layout_of(const ForwardFeatures& f, const ForwardConfig& c) {
  ForwardLayout l{};
  const int qk = padded(f.dim_qk, 64), v = padded(f.dim_v, 64);
  l.q_bytes = 64 * c.groups * qk * 2;
  l.k_bytes = c.block_n * qk * 2;
  l.v_bytes = c.block_n * v * 2;
  l.stage_blocks = v == 256 ? 2 : v / 64;  // 64-column blocks of O staged at once
  l.stage_bytes = l.stage_blocks * 8192;
  l.q = 0;
  l.k = l.q + c.q_stages * l.q_bytes;
  l.v = l.k + c.stages * l.k_bytes;
  l.stage = l.v + c.stages * l.v_bytes;
  l.bias_bytes = 64 * c.block_n * (f.bias == Type::f32 ? 4 : 2);
  l.bias = l.stage + c.groups * l.stage_bytes;
  l.slots = l.bias + c.bias_stages * c.groups * l.bias_bytes;
  l.barriers = l.slots + c.q_stages * kSlotBytes;
  l.total = l.barriers + 8 * (2 * c.q_stages + 4 * c.stages + 2 * c.bias_stages * c.groups);
  return l;
}

}  // namespace onepass::sm90
