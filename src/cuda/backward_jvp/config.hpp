// The tiles of second derivatives on tensor cores: one definition for the host and the device half.
#pragma once
#include "cuda/backward_plain/config.hpp"

namespace onepass::cuda::backward_jvp {

// A CTA holds rows of queries (or of keys) and their tangents, and blocks of keys (or of queries) stream past them.
struct SecondConfig {
  static constexpr int kSums = 2;      // what a warp holds all along: dK and dV
  static constexpr int row_tiles = 1;  // times sixteen held rows of a warp
  static constexpr int stages = 2;     // streamed blocks in shared memory
  int warps;
  int share;  // 2: pairs of warps hold the same rows, and each has half of the scores' products and of the sums'
              // columns
  int by_rows, by_keys;  // tokens of a streamed block, in the pass over rows of queries and that over keys
  int blocks;            // CTAs that share a multiprocessor
  int copy_bytes;        // bytes copied at once: what strides and pointers are multiples of

  ONEPASS_FIELDS(SecondConfig, warps, share, by_rows, by_keys, blocks, copy_bytes)
  ONEPASS_HD constexpr int held() const { return 16 * warps / share; }
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }
  ONEPASS_HD constexpr int same_rows() const { return share; }
};

// Shared memory of a CTA, in order: the held tiles, stages of streamed blocks, each with the numbers of its rows where
// these are queries, what warps of a pair hand each other, the addresses that streamed tensors begin at. Tiles come in
// the order of Kind. A row is padded to a multiple of 128 bytes, the swizzle's width.
enum Kind { kLeft, kLeftMoved, kRight, kRightMoved, kKinds };  // Q or K, its tangent; dO or V, its tangent
struct SecondLayout {
  int pitch[kKinds];  // bytes of a row
  int held[kKinds];   // places of the held tiles
  int block[kKinds];  // of the blocks within a stage
  int numbers;        // within a stage: four of each row
  int stage, stages;  // bytes of one, where they begin
  int exchange;       // of a warp: two fragments
  int bases, total;
};
ONEPASS_HD constexpr SecondLayout layout_of(const PlainBackwardFeatures& f, const SecondConfig& c, bool of_keys) {
  const AttentionFeatures& a = f.backward.forward.attention;
  const int block = of_keys ? c.by_keys : c.by_rows;
  SecondLayout l{};
  int at = 0;
  for (int i = 0; i < kKinds; ++i) {
    l.pitch[i] = round_up((i < kRight ? a.dim_qk : a.dim_v) * bytes_of(a.input), 128);
    l.held[i] = at;
    if (i < kRightMoved || of_keys || f.tdout) at += c.held() * l.pitch[i];
    l.block[i] = l.numbers;
    if (i < kRightMoved || !of_keys || f.tdout) l.numbers += block * l.pitch[i];
  }
  l.stages = at;
  l.stage = l.numbers + (of_keys ? 16 * block : 0);
  l.exchange = l.stages + SecondConfig::stages * l.stage;
  l.bases = l.exchange + (c.share == 1 ? 0 : 4 * c.threads() * block);
  l.total = l.bases + 8 * kKinds;
  return l;
}

}  // namespace onepass::cuda::backward_jvp
