// What a forward kernel is compiled for and what it is launched with: one definition for the host and the device half.
#pragma once
#include "core/mask.hpp"
#include "core/philox.hpp"

namespace onepass::sm90 {

enum class Extra : int { none, f32, f16, bf16 };  // dtype of the additive bias

struct ForwardConfig {
  int dim_qk, dim_v;
  bool is_bf16, out_f32;
  int groups;            // consumer warpgroups, 64 query rows each
  int block_n;           // keys per block
  int stages, q_stages;  // K/V blocks and Q tiles in flight
  bool flat;             // the next tile's first S rides ahead of this tile's last P V
  bool ping_pong;        // warpgroups take turns at issuing matrix products
  bool q_registers;      // Q as register fragments
  int producer_registers, consumer_registers;
  bool bounded_left, bounded_right;  // the band; unbounded sides cost nothing
  bool packed;                       // variable length
  bool softcap, alibi, sinks, dropout, bool_mask;
  Extra bias;
};

ONEPASS_HD constexpr int padded(int n, int to) { return (n + to - 1) / to * to; }

// Shared memory of a block of threads, in order: Q tiles, K blocks, V blocks, O staging, tile slots, barriers. Blocks
// of 64 columns (128 bytes, the swizzle's width) lie behind each other, each 1024-byte aligned.
struct ForwardLayout {
  int q_bytes, k_bytes, v_bytes, stage_blocks, stage_bytes;
  int q, k, v, stage, slots, barriers, total;
};
constexpr int kSlotBytes = 64;
ONEPASS_HD constexpr ForwardLayout layout_of(const ForwardConfig& c) {
  ForwardLayout l{};
  const int qk = padded(c.dim_qk, 64), v = padded(c.dim_v, 64);
  l.q_bytes = 64 * c.groups * qk * 2;
  l.k_bytes = c.block_n * qk * 2;
  l.v_bytes = c.block_n * v * 2;
  l.stage_blocks = v == 256 ? 2 : v / 64;  // 64-column blocks of O staged at once
  l.stage_bytes = l.stage_blocks * 8192;
  l.q = 0;
  l.k = l.q + c.q_stages * l.q_bytes;
  l.v = l.k + c.stages * l.k_bytes;
  l.stage = l.v + c.stages * l.v_bytes;
  l.slots = l.stage + c.groups * l.stage_bytes;
  l.barriers = l.slots + c.q_stages * kSlotBytes;
  l.total = l.barriers + 8 * (2 * c.q_stages + 4 * c.stages);
  return l;
}

struct RedoEntry {  // sixteen rows from `row` on, to be computed again; `before`: the warp's previous entry or -1
  int batch, head, row, before;
};

struct ForwardParams {
  const unsigned short *q, *k, *v;                                 // for rows recomputed with care
  long long q_stride[3], k_stride[3], v_stride[3], out_stride[3];  // elements: batch, head, token
  void* out;
  float* lse;               // null: not wanted
  long long lse_stride[3];  // batch, head, token
  unsigned* counters;       // three, zero at the start: tiles taken, blocks done, rows remembered
  RedoEntry* redo;          // room for four a tile and warpgroup
  const int *cu_q, *cu_k;   // packed only
  const void* bias;
  const unsigned char* bool_mask;
  long long bias_stride[4], mask_stride[4];
  const float *slopes, *sinks;
  long long slope_stride[2], sink_stride;
  int batch, heads, heads_per_kv, seq_q, seq_k;
  int left, right;        // -1: unbounded
  int align_bottom;       // shift = seq_k - seq_q instead of 0
  float scale_log2;       // scale * log2(e)
  float cap_in, cap_out;  // softcap: s = cap_out * tanh(cap_in * dot), cap_out in log2 units
  Dropout dropout;
  int m_tiles, heads_together, tiles;  // heads_together: heads worked on at once, for L2 locality
};

}  // namespace onepass::sm90
