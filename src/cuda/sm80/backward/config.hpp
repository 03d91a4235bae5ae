// The tiling of the backward kernel: one definition for the host and the device half.
#pragma once
#include "cuda/attention/backward/backward.hpp"

namespace onepass::sm80 {

struct BackwardConfig {
  static constexpr int kSums = 2;  // that a warp holds all along: dK and dV
  int warps, row_tiles;            // a warp holds row_tiles times sixteen keys
  int share;       // warps that hold the same keys: each some columns of dK and dV, and row_parts() of the rows of S
  int block_m;     // query rows of a step
  int stages;      // blocks of Q and dO in shared memory
  int blocks;      // that share a multiprocessor
  int copy_bytes;  // of Q, K, V and dO at once: what strides and pointers are multiples of
  bool apart;      // P and dS have places of their own
  bool pairs;      // dK and dV leave two elements at once
  bool held;       // V stays in registers, as fragments of the keys that a warp has dP of
  int pieces;      // of a warp's rows of S, one after the other

  ONEPASS_FIELDS(BackwardConfig, warps, row_tiles, share, block_m, stages, blocks, copy_bytes, apart, pairs, held,
                 pieces)
  ONEPASS_HD constexpr int block_n() const { return 16 * warps / share * row_tiles; }  // keys
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }
  // Warps that share keys have S of parts of them: of sixteen keys each if V is held, else of all.
  ONEPASS_HD constexpr int key_parts() const { return held && share > 1 ? row_tiles : 1; }
  ONEPASS_HD constexpr int same_rows() const { return share / key_parts(); }
  // Parts of a step's rows, a warp each; with sixteen rows, warps of the same keys all have S of all.
  ONEPASS_HD constexpr int row_parts() const { return block_m / same_rows() >= 16 ? same_rows() : 1; }
  ONEPASS_HD constexpr int dout_stages() const { return key_parts() > 1 ? 1 : stages; }
};

// Shared memory of a CTA, in order: K, V if it is not held; blocks of Q, of dO; dS, P; blocks of statistics; two tiles
// of work. A row is padded to a multiple of 128 bytes, the swizzle's width.
struct BackwardLayout {
  int qk_pitch, v_pitch, ds_pitch;            // bytes of a row of Q and K; of V and dO; of dS, whose rows are keys
  int q_bytes, dout_bytes, statistics_bytes;  // of a block
  bool late_statistics;  // those of the next block are copied when this block's have been read: there is one place
  int dout_parts;        // 2: fp32 is two 16-bit numbers, its rounding and the rest
  int k, v, q, dout, ds, weights, statistics, work, total;
};
ONEPASS_HD constexpr BackwardLayout layout_of(const BackwardFeatures& features, const BackwardConfig& c) {
  const AttentionFeatures& f = features.forward.attention;
  BackwardLayout l{};
  l.qk_pitch = round_up(f.dim_qk * bytes_of(f.input), 128);
  l.v_pitch = round_up(f.dim_v * bytes_of(f.input), 128);
  l.ds_pitch = round_up(c.block_m * bytes_of(f.input), 128);
  l.q_bytes = c.block_m * l.qk_pitch;
  l.dout_bytes = c.block_m * l.v_pitch;
  l.dout_parts = features.forward.output == f.input ? 1 : 2;
  l.statistics_bytes = 4 * features.statistics() * c.block_m;
  l.late_statistics = features.dq && c.row_tiles == 2 && c.share == 1;
  l.k = 0;
  l.v = l.k + c.block_n() * l.qk_pitch;
  l.q = l.v + (c.held ? 0 : c.block_n() * l.v_pitch);
  l.dout = l.q + c.stages * l.q_bytes;
  l.ds = l.dout + c.dout_stages() * l.dout_parts * l.dout_bytes;
  l.weights = l.ds + (c.apart ? c.block_n() * l.ds_pitch : 0);
  l.statistics = l.weights + c.block_n() * l.ds_pitch;
  l.work = l.statistics + (l.late_statistics ? 1 : c.stages) * l.statistics_bytes;
  l.total = l.work + 2 * 64;
  return l;
}

}  // namespace onepass::sm80
