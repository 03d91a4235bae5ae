// Blocks of query rows as the kernels of a backward pass pass them on, and their statistics.
#pragma once
#include "cuda/attention/tile_orders.cuh"
#include "cuda/mma/elements.cuh"

#include "cuda/attention/backward/backward.hpp"

namespace onepass {

constexpr i32 kBlockQ = backward_shape.block_q, kBlockK = backward_shape.block_k,
              kStatistics = backward_features.statistics();

// The first block of a batch entry, in blocks of `block` tokens.
template <i32 block>
DEV i32 first_block(const int* cu, i32 seq, i32 batch) {
  return features.packed ? cu[batch] / block + batch : batch * ceil_div(seq, block);
}
DEV i32 first_q_block(const BackwardParams& p, i32 batch) { return first_block<kBlockQ>(p.cu_q, p.seq_q, batch); }

// The WorkTile that HeadScores needs for a tile of keys and one query head; `row` is its first query row.
DEV WorkTile rows_of(const KeyTile& x, i32 head, i32 row) {
  WorkTile y;
  y.row = row, y.head = head, y.batch = x.batch, y.map_batch = x.map_batch;
  y.q_begin = x.q_begin, y.k_begin = x.k_begin, y.seq_q = x.seq_q, y.seq_k = x.seq_k;
  return y;
}
// Packed: the sequence of which `at` is a block, the last one that begins there or before.
template <i32 block>
DEV i32 sequence_of(const int* cu, i32 batch, i32 at) {
  i32 lo = 0, hi = batch;
  while (hi - lo > 1) {
    const i32 middle = (lo + hi) / 2;
    (first_block<block>(cu, 0, middle) <= at ? lo : hi) = middle;
  }
  return lo;
}
// The rows of block `block` of a head, in blocks of `rows`; row = -1 if a packed batch has no such block.
template <i32 rows = kBlockQ>
DEV WorkTile rows_of_block(const BackwardParams& p, i32 head, i32 block) {
  WorkTile x;
  x.head = head;
  if constexpr (features.packed) {
    const i32 own = sequence_of<rows>(p.cu_q, p.batch, block);
    x.batch = own;
    x.q_begin = p.cu_q[own], x.seq_q = p.cu_q[own + 1] - x.q_begin;
    x.k_begin = p.cu_k[own], x.seq_k = p.cu_k[own + 1] - x.k_begin;
  } else {
    const i32 blocks = ceil_div(p.seq_q, rows);
    x.map_batch = x.batch = block / blocks;
    x.seq_q = p.seq_q, x.seq_k = p.seq_k;
  }
  x.row = (block - first_block<rows>(p.cu_q, p.seq_q, x.batch)) * rows;
  if (x.row >= x.seq_q) x.row = -1;
  return x;
}
// The keys of block `block` of a head of K and V, in blocks of `keys`; key = -1 if a packed batch has no such block.
template <i32 keys = kBlockK>
DEV KeyTile keys_of_block(const BackwardParams& p, i32 head, i32 block) {
  KeyTile x;
  x.head = head;
  x.seq_q = p.seq_q, x.seq_k = p.seq_k;
  if constexpr (features.packed) {
    const i32 own = sequence_of<keys>(p.cu_k, p.batch, block);
    x.batch = own;
    x.q_begin = p.cu_q[own], x.seq_q = p.heads == 0 ? 0 : p.cu_q[own + 1] - x.q_begin;
    x.k_begin = p.cu_k[own], x.seq_k = p.cu_k[own + 1] - x.k_begin;
  } else {
    x.map_batch = x.batch = block / ceil_div(p.seq_k, keys);
  }
  x.key = (block - first_block<keys>(p.cu_k, p.seq_k, x.batch)) * keys;
  if (x.key >= x.seq_k) x.key = -1;
  return x;
}

// [head][q block], where statistics, sums and turns are found.
DEV i64 place_of(const BackwardParams& p, i32 head, i32 block) { return static_cast<i64>(head) * p.q_blocks + block; }
DEV float* statistics_of(const BackwardParams& p, i64 place) { return p.statistics + place * (kStatistics * kBlockQ); }
DEV float* dq_sums_of(const BackwardParams& p, i64 place) {
  return p.dq_sums + place * (kBlockQ * backward_shape.sum_columns);
}

// The place in p.turns of the tile of keys that holds `key`.
DEV u32* turn_at(const BackwardParams& p, i64 place, i32 key) {
  return p.turns + place * p.turn_tiles + key / backward_shape.turn_keys;
}

// [head][k block]: the first block of a sequence. seq_k is read again, in place of a count that waits in a register.
DEV i64 key_place(const BackwardParams& p, i32 head, i32 batch) {
  return static_cast<i64>(head) * p.k_blocks + first_block<kBlockK>(p.cu_k, opaque(p.seq_k), batch);
}
// The address of the part of a slope's gradient that sixteen keys contribute, for one query head. If several warps
// share the keys, each has a part.
DEV float* slope_part(const BackwardParams& p, const KeyTile& x, i32 head, i32 key, i32 part = 0) {
  return p.slope_parts + (key_place(p, head, x.batch) + key / kBlockK) * backward_shape.key_warps +
         part * (kBlockK / 16) + key % kBlockK / 16;
}
// Says to the post kernel that dK or dV of sixteen keys is not finite as it is stored. The mark is the call's number,
// so it needs no zeroing. An older mark of the same number, of a graph's replay, costs a look. The first word stands
// for all.
DEV void mark_keys(const BackwardParams& p, const KeyTile& x, i32 key) {
  const u32 call = static_cast<u32>(p.call);
  p.broken_keys[0] = call;
  p.broken_keys[1 + (key_place(p, x.head, x.batch) + key / kBlockK) * (kBlockK / 16) + key % kBlockK / 16] = call;
}

struct RowStatistics {
  float reference, d;  // of the weights (probability); rowsum(dO * O) - dLSE + dH H
  float dentropy;      // ln2 dH, for log2 of a weight
};
DEV RowStatistics statistics_at(const BackwardParams& p, const WorkTile& x, i32 row) {
  const i64 place = place_of(p, x.head, first_q_block(p, x.batch) + row / kBlockQ);
  const float* const at = statistics_of(p, place) + statistic_at(row % kBlockQ);
  return {at[0], at[kBlockQ], backward_features.dentropy ? at[2 * kBlockQ] : 0.0f};
}

}  // namespace onepass
