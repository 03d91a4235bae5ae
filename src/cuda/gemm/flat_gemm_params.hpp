// The config and the parameters of the flat GEMM kernel. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

struct FlatGemmConfig {
  ScalarType input, output;
  int tiles;     // of 8 rows of x: 1 to 8
  int warps_n;   // that differ by rows of w; the others share k
  int blocks;    // of 16 rows of w that a warp has, 1 or 2: each reads x from shared memory once for all of them
  int stages;    // of the ring in shared memory
  bool vectors;  // x and w are read by 16 bytes
  bool bias;

  ONEPASS_HD constexpr int tile_n() const { return 16 * blocks * warps_n; }
  ONEPASS_HD constexpr int warps_k() const { return 8 / warps_n; }
  ONEPASS_HD constexpr int step() const { return 2048 / tile_n() * 8; }  // numbers along k of a stage: 32 KB of w
  ONEPASS_HD constexpr int stage_bytes() const { return (tile_n() + 8 * tiles) * step() * 2; }
  // Behind the ring: the sums of all warps but those of the first part of k.
  ONEPASS_HD constexpr int shared_bytes() const {
    return stages * stage_bytes() + (warps_k() - 1) * tile_n() * 8 * tiles * 4;
  }
  ONEPASS_FIELDS(FlatGemmConfig, input, output, tiles, warps_n, blocks, stages, vectors, bias)
};

constexpr int kGemmThreads = 256;

struct FlatGemmParams {
  const void *x, *w, *bias;
  void* y;
  long long x_stride[2], w_stride[2], y_stride[2], bias_stride;
  int m, n, k;
  int splits, split_steps;  // along k: their number, and steps of each
  float* partials;          // [split][n tile][m][tile_n], of splits > 1
  unsigned* counters;       // one for each group of n tiles; zero at the start and at the end
  int tiles_n, group;       // n tiles; of a group
  int each, more;           // rows of an n tile, at least; tiles that have one more
};

}  // namespace onepass
