// The config and the parameters of the quantize kernels. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

// Each of four threads of a row has every fourth run of 8 elements.
constexpr int kQuantizeRun = 8, kQuantizeLanes = 4;

// Steps of an algorithm, a launch each. amax: the largest absolute values, and sums of columns, of chunks of a head.
// write: rows to fp8_e4m3. estimate: the same with a scale estimated from a few rows. requantize: once more the heads
// that exceed their estimated scale.
ONEPASS_ENUM(QuantizePart, amax, write, estimate, requantize);

struct QuantizeConfig {
  ScalarType input;
  int dim;  // elements of a row
  bool hadamard, centered;
  bool by_block;  // a scale for every 128 rows, from these alone
  bool vectors;   // rows are read in 16 bytes and written in 8
  bool tiles;     // by quantize.cuh; else by rows.cuh
  int rows;       // of a CTA at once
  QuantizePart part;
  bool shared = false;   // of quantize.cuh: several heads share a scale
  bool several = false;  // of quantize.cuh: a CTA has several tiles of a head, one after the other
  ONEPASS_FIELDS(QuantizeConfig, input, dim, hadamard, centered, by_block, vectors, tiles, rows, part, shared, several)

  // CTAs of quantize.cuh that a multiprocessor has registers for.
  ONEPASS_HD constexpr int blocks_at_once() const { return dim <= 64 ? 4 : 2; }
  // Shared memory: a word of each warp, then columns; in an amax pass those of each warp.
  ONEPASS_HD constexpr int threads() const { return rows * kQuantizeLanes; }
  ONEPASS_HD constexpr int columns_at() const { return threads() / 32 * 4; }
  ONEPASS_HD constexpr int shared_bytes() const {
    return columns_at() + (centered ? dim * 4 * (part == QuantizePart::amax ? threads() / 32 : 1) : 0);
  }
};

struct QuantizeParams {
  const void* x;
  unsigned char* y;
  float *descale, *mean;
  // Results of the first launch. Amax pass: [batch * heads, pieces, dim] and [batch * heads, pieces]. Estimate: its
  // scales [batch * heads], and [batch * heads, groups].
  float *sums, *amax;
  long long x_stride[4], y_stride[4], descale_stride[3], mean_stride[3];
  unsigned sign[8];  // bit c: column c changes its sign
  float root;        // 1 / sqrt(columns that a rotation mixes)
  const int* used;   // rows of each head that count, at most `rows`; nullptr: all. The others are written as 0
  int heads, rows, pieces, piece_rows;
  int blocks, tiles, groups;     // of rows, in each head; those that a CTA has; CTAs of a head
  int requant_blocks;            // CTAs for all heads that share a scale
  int group_batch, group_heads;  // batch entries and heads that share a scale

  ONEPASS_HD constexpr int used_rows() const { return !used ? rows : *used < 0 ? 0 : *used < rows ? *used : rows; }
};

// One launch of quantize.cuh: up to three quantizes, or a step of each.
constexpr int kQuantizeTileRows = 128, kQuantizeTileThreads = 256, kMaxQuantizeJobs = 3;
struct QuantizeConfigs {
  QuantizeConfig job[kMaxQuantizeJobs];
  int count;
  ONEPASS_HD friend constexpr bool operator==(const QuantizeConfigs&, const QuantizeConfigs&) = default;

  // Shared memory: a word of each warp twice, then the signs of columns.
  ONEPASS_HD constexpr int shared_bytes() const { return 2 * kQuantizeTileThreads / 32 * 4 + 256 / 32 * 64; }
  // True if it reads what the launch before it finds; it waits for that itself.
  ONEPASS_HD constexpr bool follows() const { return job[0].part == QuantizePart::requantize; }
  // CTAs that a multiprocessor has registers for.
  ONEPASS_HD constexpr int blocks_at_once() const {
    int least = job[0].blocks_at_once();
    for (int i = 1; i < count; ++i) least = job[i].blocks_at_once() < least ? job[i].blocks_at_once() : least;
    return least;
  }
};
struct QuantizeJobs {
  QuantizeParams job[kMaxQuantizeJobs];
  int blocks[kMaxQuantizeJobs];  // CTAs
};

}  // namespace onepass
