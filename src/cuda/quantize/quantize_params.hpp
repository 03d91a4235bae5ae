// What the kernels of a quantize are compiled for and launched with. One definition for the host and the device half.
#pragma once
#include "cuda/attention/attention.hpp"

namespace onepass {

// A thread of a row's has every lanes-th run of 8 numbers.
constexpr int kQuantizeRun = 8;

// survey: sums of columns and the largest numbers, of pieces of a head. write: rows to fp8_e4m3.
enum class QuantizePart : int { survey, write };

struct QuantizeConfig {
  ScalarType input;
  int dim;  // numbers of a row
  bool hadamard, centered;
  bool by_block;  // a factor for every 128 rows, from these alone
  bool vectors;   // rows are read in 16 bytes and written in 8
  int rows;       // of a block of threads at once
  int lanes;      // threads of a row
  QuantizePart part;
  ONEPASS_HD friend constexpr bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;

  // Shared memory: a number of each warp, then columns, in a survey those of each warp.
  ONEPASS_HD constexpr int threads() const { return rows * lanes; }
  ONEPASS_HD constexpr int columns_at() const { return threads() / 32 * 4; }
  ONEPASS_HD constexpr int shared_bytes() const {
    return columns_at() + (centered ? dim * 4 * (part == QuantizePart::survey ? threads() / 32 : 1) : 0);
  }
};

struct QuantizeParams {
  const void* x;
  unsigned char* y;
  float *descale, *mean;
  float *sums, *most;  // of a survey: [batch * heads, pieces, dim] and [batch * heads, pieces]
  long long x_stride[4], y_stride[4], descale_stride[3], mean_stride[3];
  unsigned sign[8];  // bit c: column c changes its sign
  float root;        // 1 / the root of how many columns a rotation mixes
  int heads, rows, blocks, pieces, piece_rows;
  int group_batch, group_heads;  // batch entries and heads that share a factor
};

}  // namespace onepass
