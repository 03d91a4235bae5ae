// The config and the parameters of all backward kernels, for every architecture: one definition for the host and the
// device half. They contain a forward's tensors and parameters, because O and the LSE are inputs here.
#pragma once
#include "cuda/attention/forward.hpp"

namespace onepass {

struct BackwardFeatures {
  ForwardFeatures forward;                  // output: of O and dO
  ScalarType gradients;                     // of dQ, dK and dV
  bool dlse, dentropy;                      // given
  bool dq, dk, dv, dbias, dsinks, dslopes;  // wanted
  bool deterministic;
  ONEPASS_FIELDS(BackwardFeatures, forward, gradients, dlse, dentropy, dq, dk, dv, dbias, dsinks, dslopes,
                 deterministic)
  // dS is wanted, not only dV.
  ONEPASS_HD constexpr bool scores() const { return dq || dk || dslopes; }
  ONEPASS_HD constexpr int statistics() const { return dentropy ? 3 : 2; }  // of a row
};

// How a family lays out what passes between the kernels of a call. Rows are padded to blocks of block_q, for each head
// and each sequence.
struct BackwardShape {
  int block_q, block_k;  // query rows and keys
  int key_warps;         // that hold sixteen of a block's keys: each has part of a slope's sum
  int sum_columns;       // of dQ's fp32 sums: dim_qk padded to a multiple of 4
  bool zero_sums;        // by the pre kernel; else by the family's own
  bool mask_fragments;   // the packed mask in their order, too
  bool careful;          // the pre kernel says whether the call needs care (careful.cuh)
  int mark_blocks;       // CTAs that keep marks in the workspace
  // What addresses and strides of O and dO, and of dQ, are multiples of: bytes read or written at once, up to 16.
  int read_bytes, write_bytes;
  int row_bytes;     // the same of q, k, v and dO
  int turn_keys;     // where a mask leaves tiles out of sums in one order, keys of a tile (tile_turns.cuh); else 0
  bool group_turns;  // query heads that share keys have the same turns, in KeysOuter's order by_turns
  ONEPASS_FIELDS(BackwardShape, block_q, block_k, key_warps, sum_columns, zero_sums, mask_fragments, careful,
                 mark_blocks, read_bytes, write_bytes, row_bytes, turn_keys, group_turns)
};
constexpr int kListWords = 32;      // of a tile's list (sm90): blocks of rows beyond these 1024 are never left out
constexpr int kZeroWords = 1 + 32;  // BackwardParams::zeros
constexpr int kMarkWords = 4, kMarkLanes = 256;  // of a CTA: a bit for each sum of a lane
constexpr int kRepairBytes = 128 + 35 * 128;     // of shared memory, in the post kernel: RepairTeam
// What the kernels of a guarded call tell each other: the first words of the workspace behind its counters.
constexpr int kCallWords = 4;  // from this one on
struct CallNotes {
  unsigned long long careful_call;  // the last call that the pre kernel has found to need care
  unsigned found;                   // Found, of this call
};
enum Found : unsigned {
  kTookCare = 1,       // hidden pairs had no part in any sum, but for the keys in dQ
  kKeysNotFinite = 2,  // or dS does not fit its type: dQ may be wrong where it is not finite
};
// The index of a row's statistic: within 16 rows, row 8 h + 2 t + r is at 4 t + 2 h + r. A lane of quad t then loads
// the four floats for its eight accumulators of a transposed fragment at once.
ONEPASS_HD constexpr int statistic_at(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2; }

// Blocks of tokens of all sequences of a head. Packed, sequence b begins at block cu[b] / block + b, which leaves room
// for those before it whatever their lengths.
ONEPASS_HD constexpr long long padded_blocks(bool packed, long long batch, long long seq, long long total, int block) {
  return packed ? total / block + batch : batch * ceil_div(seq, block);
}

struct BackwardParams : ForwardParams {
  const void* dout;
  long long dout_stride[3];
  const float* dlse;  // null: none
  long long dlse_stride[3];
  void *dq, *dk, *dv;
  long long dq_stride[3], dk_stride[3], dv_stride[3];
  float* dbias;
  long long dbias_stride[4];  // 0 where the bias is repeated
  int bias_size[4];           // 1 there
  float *dsinks, *dslopes;
  long long dsink_stride, dslope_stride[2];
  int slope_batch;  // entries of dslopes along the batch
  // In the workspace.
  int q_blocks, k_blocks;  // padded_blocks of queries and of keys
  float* statistics;       // [head][q block]: the rows' references (score.cuh), their D, then ln2 dH if there is a dH
  float* dq_sums;          // [head][q block][block_q x sum_columns, in an order of the family's]
  float* sink_parts;       // [head][q block]
  float* slope_parts;      // [head][k block][key_warps]
  unsigned* marks;         // [CTA][kMarkWords][kMarkLanes]; shape.mark_blocks
  CallNotes* notes;
  unsigned long long call;  // its number, which no other call of the process has: the notes need no zeroing
  unsigned* order;          // [head][q block]: how many key blocks have added to its sums; deterministic only
  unsigned* turns;          // [head][q block][turn_tiles]: how many add before a tile; shape.turn_keys only
  int turn_tiles;           // of the longest sequence
  unsigned* zeros;  // !shape.zero_sums: how many blocks of rows are taken, to fill their sums with zeros; then how many
                    // of each group of blocks are filled
  int zero_shift;   // log2 of the blocks of a group, of which there are at most 32
  MaskFragments mask_fragments;  // with shape.mask_fragments
  unsigned* broken_keys;  // a word for all keys, then [head of K and V][k block][block_k / 16], as mark_keys says
  int heads_kv;           // more than 0 where heads is 0, too: dK and dV are zeros then
  const float *entropy, *dentropy;  // the entropies and their gradient
  long long entropy_stride[3], dentropy_stride[3];
};

}  // namespace onepass
