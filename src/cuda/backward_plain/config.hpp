// The features and the parameters of the plain kernels of gradients and of their derivatives along tangents: one
// definition for the host and the device half.
#pragma once
#include "cuda/attention/backward/backward.hpp"

namespace onepass {

// tangents: derivatives of the gradients are wanted, and stand where the gradients would be.
struct PlainBackwardFeatures {
  BackwardFeatures backward;
  bool tangents;
  bool tdout, tdlse, tbias, tsinks;  // given
  int mark_parts;  // words of a mark of sixteen rows or keys; 0: there are no marks, and everything is computed
  ONEPASS_FIELDS(PlainBackwardFeatures, backward, tangents, tdout, tdlse, tbias, tsinks, mark_parts)
};

struct PlainBackwardParams : BackwardParams {
  const void *tq, *tk, *tv, *tout, *tdout;
  long long tq_stride[3], tk_stride[3], tv_stride[3], tout_stride[3], tdout_stride[3];
  const float *tlse, *tdlse;
  long long tlse_stride[3], tdlse_stride[3];
  const void* tbias;
  long long tbias_stride[4];
  const float* tsinks;
  long long tsink_stride;
  // In the workspace.
  float* moved;              // [head][q block]: RowNumbers' last two
  unsigned* row_marks;       // [head][q block][sixteen rows][part]: not 0 if sums of cuda.backward_jvp are not finite
  unsigned* key_marks;       // [head of K and V][k block][sixteen keys][part]
  int row_tiles, key_tiles;  // of cuda.backward_jvp: padded_blocks of its tiles
  int row_group, key_group;  // heads whose streamed tensors L2 holds
};

// Threads of a CTA: 16 x 16 share a tile of pairs. Columns that are in shared memory at once: of the operands of the
// scores, of those of the sums.
constexpr int kPlainSide = 16, kPlainThreads = kPlainSide * kPlainSide, kPlainDepth = 32, kPlainColumns = 64;

// Shared memory of a CTA, in order: two tiles of pairs, then the operands of a product. Rows have four numbers more
// than they need, against bank conflicts.
struct PlainBackwardLayout {
  int pair_pitch, depth_pitch, column_pitch;  // bytes of a row
  int pair_bytes, operands, total;            // of a tile of pairs; where operands begin
};
ONEPASS_HD constexpr PlainBackwardLayout plain_layout(int block) {
  PlainBackwardLayout l{};
  l.pair_pitch = 4 * (block + 4);
  l.depth_pitch = 4 * (kPlainDepth + 4);
  l.column_pitch = 4 * kPlainColumns;
  l.pair_bytes = block * l.pair_pitch;
  l.operands = 2 * l.pair_bytes;
  const int depth = 4 * block * l.depth_pitch, columns = 2 * block * l.column_pitch;
  l.total = l.operands + (depth > columns ? depth : columns);
  return l;
}

}  // namespace onepass
