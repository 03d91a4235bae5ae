// The tiling of the kernel on tensor cores: one definition for the host and the device half.
#pragma once
#include "cuda/jvp/jvp_params.hpp"

namespace onepass::cuda::jvp {

struct JvpConfig {
  static constexpr int kSums = 2;  // what a warp holds all along: O and its derivative
  int warps, row_tiles;            // a warp holds row_tiles times sixteen query rows
  int share;                       // warps that hold the same rows: each some columns of the sums
  int block_n;                     // keys per block
  int stages;                      // blocks of K, V and their tangents in shared memory
  int blocks;                      // that share a multiprocessor
  int copy_bytes;                  // bytes copied at once: what strides and pointers are multiples of
  bool staged;                     // results leave through shared memory by 16-byte stores

  ONEPASS_FIELDS(JvpConfig, warps, row_tiles, share, block_n, stages, blocks, copy_bytes, staged)
  ONEPASS_HD constexpr int block_m() const { return 16 * warps / share * row_tiles; }
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }
  ONEPASS_HD constexpr int same_rows() const { return share; }
};

// Shared memory of a CTA, in order: the tiles of Q and its tangent (O and its derivative on their way out), blocks of K
// and its tangent, blocks of V and its tangent, two tiles of work, the addresses that the tile in hand begins at.
// A row is padded to a multiple of 128 bytes, the swizzle's width.
struct JvpLayout {
  int q_pitch, k_pitch, v_pitch;  // bytes of a row; k_pitch is q_pitch
  int q_bytes, k_bytes, v_bytes;  // of one tensor's tile or block; its tangent's lies behind it
  int q, k, v, work, bases, total;
};
ONEPASS_HD constexpr JvpLayout layout_of(const JvpFeatures& features, const JvpConfig& c) {
  const AttentionFeatures& f = features.forward.attention;
  JvpLayout l{};
  l.q_pitch = l.k_pitch = round_up(f.dim_qk * bytes_of(f.input), 128);
  l.v_pitch = round_up(f.dim_v * bytes_of(f.input), 128);
  l.q_bytes = c.block_m() * (c.staged && l.v_pitch > l.q_pitch ? l.v_pitch : l.q_pitch);
  l.k_bytes = c.block_n * l.k_pitch;
  l.v_bytes = c.block_n * l.v_pitch;
  l.q = 0;
  l.k = l.q + 2 * l.q_bytes;
  l.v = l.k + 2 * c.stages * l.k_bytes;
  l.work = l.v + 2 * c.stages * l.v_bytes;
  l.bases = l.work + 2 * 64;
  l.total = l.bases + 64;
  return l;
}

}  // namespace onepass::cuda::jvp
