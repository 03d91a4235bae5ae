// The tiling of the kernel: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass::sm80 {

struct ForwardConfig {
  static constexpr int kSums = 1;  // what a warp holds all along: O
  int warps, row_tiles;            // a warp holds row_tiles times sixteen query rows
  int share;           // warps that hold the same rows: each some columns of O, and S of some keys of a block first
  int block_n;         // keys per block
  int stages;          // blocks of K, and of V, in shared memory
  bool q_registers;    // Q as register fragments
  bool column_groups;  // border blocks are masked by groups of columns
  int blocks;          // that share a multiprocessor
  int copy_bytes;      // bytes of K, V and Q copied at once: what strides and pointers are multiples of
  bool staged;         // O leaves through shared memory by 16-byte stores

  ONEPASS_FIELDS(ForwardConfig, warps, row_tiles, share, block_n, stages, q_registers, column_groups, blocks,
                 copy_bytes, staged)
  ONEPASS_HD constexpr int block_m() const { return 16 * warps / share * row_tiles; }
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }
  ONEPASS_HD constexpr int same_rows() const { return share; }
};

// Shared memory of a CTA, in order: the Q tile (O on its way out), K blocks, V blocks, S where warps share rows, two
// tiles of work, the addresses of a block's rows of K and V where they are paged, the last remembered rows of each
// warp. A row is padded to a multiple of 128 bytes, the swizzle's width.
struct ForwardLayout {
  int q_pitch, k_pitch, v_pitch;  // bytes of a row; k_pitch is q_pitch
  int k_bytes, v_bytes;           // of a block
  int q, k, v, scores, work, bases, rows, fallback, total;
};
ONEPASS_HD constexpr ForwardLayout layout_of(const ForwardFeatures& features, const ForwardConfig& c) {
  const AttentionFeatures& f = features.attention;
  ForwardLayout l{};
  l.q_pitch = l.k_pitch = round_up(f.dim_qk * bytes_of(f.input), 128);
  l.v_pitch = round_up(f.dim_v * bytes_of(f.input), 128);
  l.k_bytes = c.block_n * l.k_pitch;
  l.v_bytes = c.block_n * l.v_pitch;
  const int widest = c.staged && l.v_pitch > l.q_pitch ? l.v_pitch : l.q_pitch;
  l.q = 0;
  l.k = l.q + c.block_m() * widest;
  l.v = l.k + c.stages * l.k_bytes;
  l.scores = l.v + c.stages * l.v_bytes;
  l.work = l.scores + (c.share > 1 ? 4 * c.block_m() * c.block_n : 0);
  l.bases = l.work + 2 * 64;
  l.rows = l.bases + (f.paged ? 48 : 32);
  l.fallback = l.rows + (f.paged ? 2 * 8 * c.block_n : 0);
  l.total = l.fallback + 4 * c.warps;
  return l;
}

}  // namespace onepass::sm80
