// The tiling of the kernel: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass::sm80 {

struct ForwardConfig {
  static constexpr int kSums = 1, share = 1;  // what a warp holds all along: O; warps that hold the same rows
  int warps, row_tiles;                       // a warp holds row_tiles times sixteen query rows
  int block_n;                                // keys per block
  int stages;                                 // blocks of K, and of V, in shared memory
  bool q_registers;                           // Q as register fragments
  bool column_groups;                         // border blocks are masked by groups of columns
  int blocks;                                 // that share a multiprocessor
  int copy_bytes;  // bytes of K, V and Q copied at once: what strides and pointers are multiples of
  bool staged;     // O leaves through shared memory by 16-byte stores

  ONEPASS_FIELDS(ForwardConfig, warps, row_tiles, block_n, stages, q_registers, column_groups, blocks, copy_bytes,
                 staged)
  ONEPASS_HD constexpr int block_m() const { return 16 * warps * row_tiles; }
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }
};

// Shared memory of a CTA, in order: the Q tile (O on its way out), K blocks, V blocks, two tiles of
// work, the last remembered rows of each warp.
// A row is padded to a multiple of 128 bytes, the swizzle's width.
struct ForwardLayout {
  int q_pitch, k_pitch, v_pitch;  // bytes of a row; k_pitch is q_pitch
  int k_bytes, v_bytes;           // of a block
  int q, k, v, work, bases, fallback, total;
};
ONEPASS_HD constexpr ForwardLayout layout_of(const ForwardFeatures& features, const ForwardConfig& c) {
  const AttentionFeatures& f = features.attention;
  ForwardLayout l{};
  l.q_pitch = l.k_pitch = padded(f.dim_qk * bytes_of(f.input), 128);
  l.v_pitch = padded(f.dim_v * bytes_of(f.input), 128);
  l.k_bytes = c.block_n * l.k_pitch;
  l.v_bytes = c.block_n * l.v_pitch;
  const int widest = c.staged && l.v_pitch > l.q_pitch ? l.v_pitch : l.q_pitch;
  l.q = 0;
  l.k = l.q + c.block_m() * widest;
  l.v = l.k + c.stages * l.k_bytes;
  l.work = l.v + c.stages * l.v_bytes;
  l.bases = l.work + 2 * 64;
  l.fallback = l.bases + (features.attention.paged ? 48 : 32);
  l.total = l.fallback + 4 * c.warps;
  return l;
}

}  // namespace onepass::sm80
