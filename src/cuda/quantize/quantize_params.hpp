// The config and the parameters of the quantize kernels. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

// Each of four threads of a row has every fourth run of 8 elements.
constexpr int kQuantizeRun = 8, kQuantizeLanes = 4;

// survey: sums of columns and the largest numbers, of pieces of a head. write: rows to fp8_e4m3. guess: with factors
// from a few of the rows that share one. mend: all of these once more that go beyond theirs.
ONEPASS_ENUM(QuantizePart, survey, write, guess, mend);

struct QuantizeConfig {
  ScalarType input;
  int dim;  // numbers of a row
  bool hadamard, centered;
  bool by_block;  // a factor for every 128 rows, from these alone
  bool vectors;   // rows are read in 16 bytes and written in 8
  bool tiles;     // by tile.cuh
  int rows;       // of a block of threads at once
  QuantizePart part;
  bool shared = false;   // of tile.cuh: a factor is of more than one head
  bool several = false;  // of tile.cuh: a block of threads has some tiles of a head in turn
  ONEPASS_FIELDS(QuantizeConfig, input, dim, hadamard, centered, by_block, vectors, tiles, rows, part, shared, several)

  // CTAs of tile.cuh that a multiprocessor has registers for.
  ONEPASS_HD constexpr int blocks_at_once() const { return dim <= 64 ? 4 : 2; }
  // Shared memory: a number of each warp, then columns, in a survey those of each warp.
  ONEPASS_HD constexpr int threads() const { return rows * kQuantizeLanes; }
  ONEPASS_HD constexpr int columns_at() const { return threads() / 32 * 4; }
  ONEPASS_HD constexpr int shared_bytes() const {
    return columns_at() + (centered ? dim * 4 * (part == QuantizePart::survey ? threads() / 32 : 1) : 0);
  }
};

struct QuantizeParams {
  const void* x;
  unsigned char* y;
  float *descale, *mean;
  // Results of the first pass. Exact amax: [batch * heads, pieces, dim] and [batch * heads, pieces]. Estimate: its
  // scales [batch * heads], and [batch * heads, groups].
  float *sums, *most;
  long long x_stride[4], y_stride[4], descale_stride[3], mean_stride[3];
  unsigned sign[8];  // bit c: column c changes its sign
  float root;        // 1 / the root of how many columns a rotation mixes
  const int* used;   // how many rows of each head count, at most `rows`; nullptr: all. The others are written as 0
  int heads, rows, pieces, piece_rows;
  int blocks, tiles, groups;     // of rows, in each head; of them a block of threads' in turn; such blocks of a head
  int menders;                   // blocks of threads for all that share a factor
  int group_batch, group_heads;  // batch entries and heads that share a factor

  ONEPASS_HD constexpr int used_rows() const { return !used ? rows : *used < 0 ? 0 : *used < rows ? *used : rows; }
};

// One launch of tile.cuh: up to three quantizes, or a step of each.
constexpr int kQuantizeTileRows = 128, kQuantizeTileThreads = 256, kMaxQuantizeJobs = 3;
struct QuantizeConfigs {
  QuantizeConfig job[kMaxQuantizeJobs];
  int count;
  ONEPASS_HD friend constexpr bool operator==(const QuantizeConfigs&, const QuantizeConfigs&) = default;

  // Shared memory: a number of each warp twice, then the signs of columns.
  ONEPASS_HD constexpr int shared_bytes() const { return 2 * kQuantizeTileThreads / 32 * 4 + 256 / 32 * 64; }
  // It reads what the launch in front of it finds, and waits for that itself.
  ONEPASS_HD constexpr bool follows() const { return job[0].part == QuantizePart::mend; }
  // Blocks of threads that a multiprocessor has registers for.
  ONEPASS_HD constexpr int blocks_at_once() const {
    int least = job[0].blocks_at_once();
    for (int i = 1; i < count; ++i) least = job[i].blocks_at_once() < least ? job[i].blocks_at_once() : least;
    return least;
  }
};
struct QuantizeJobs {
  QuantizeParams job[kMaxQuantizeJobs];
  int blocks[kMaxQuantizeJobs];  // of threads
};

}  // namespace onepass
