// The gradient of the bias, or its derivative: a CTA for each tile of the bias goes through all pairs that the tile
// belongs to, of every batch entry and head, and adds them up in one order.
#pragma once
#include "cuda/backward_plain/pairs.cuh"

namespace onepass::cuda::backward_plain {

// The part of the bias that a CTA has. Along a dimension where the bias is repeated, that is everything.
struct BiasTile {
  i32 batch, head, row, key;
  bool one_batch, one_head, one_row, one_key;

  static DEV BiasTile of(const BackwardParams& p, i32 number) {
    const auto take = [&](i32 count) {
      const i32 i = number % count;
      number /= count;
      return i;
    };
    BiasTile t;
    t.key = take(ceil_div(p.bias_size[3], kBlock)) * kBlock;
    t.row = take(ceil_div(p.bias_size[2], kBlock)) * kBlock;
    t.head = take(p.bias_size[1]);
    t.batch = number;
    t.one_batch = p.bias_size[0] > 1, t.one_head = p.bias_size[1] > 1;
    t.one_row = p.bias_size[2] > 1, t.one_key = p.bias_size[3] > 1;
    return t;
  }
};

// Adds the pairs of one head of one batch entry.
DEV void add_pairs(const PlainBackwardParams& p, u32 sm, const BiasTile& tile, i32 batch, i32 head, Pairs& sum) {
  WorkTile x;
  x.head = head, x.batch = batch, x.map_batch = features.packed ? 0 : batch;
  x.seq_q = p.seq_q, x.seq_k = p.seq_k;
  if constexpr (features.packed) {
    x.q_begin = p.cu_q[batch], x.seq_q = p.cu_q[batch + 1] - x.q_begin;
    x.k_begin = p.cu_k[batch], x.seq_k = p.cu_k[batch + 1] - x.k_begin;
  }
  HeadScores scores{p};
  scores.open(x);
  const i32 to_key = tile.one_key ? min(tile.key + kBlock, x.seq_k) : x.seq_k;
#pragma unroll 1
  for (i32 key = tile.one_key ? tile.key : 0; key < to_key; key += kBlock) {
    const Band32::Range rows = rows_that_see(scores.band, key, min(key + kBlock, x.seq_k));
    const i32 from = rows.lo / kBlock * kBlock, to = tile.one_row ? min(rows.hi, tile.row + kBlock) : rows.hi;
#pragma unroll 1
    for (x.row = tile.one_row ? max(from, tile.row) : from; x.row < to; x.row += kBlock) {
      if (is_empty(p, x, key)) continue;
      PairTerms t;
      find_terms<true, true>(p, sm, scores, x, key, t, [](i32, i32, float) {});
#pragma unroll
      for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
        for (i32 j = 0; j < kPer; ++j) sum[i][j] += t.x[i][j];
      }
    }
  }
}

// Sums by row, by key or of all meet in shared memory.
DEV void write_bias(const PlainBackwardParams& p, u32 sm, const BiasTile& tile, const Pairs& sum) {
  const auto write = [&](i32 row, i32 key, float x) {
    if (row < p.bias_size[2] && key < p.bias_size[3])
      p.dbias[tile.batch * p.dbias_stride[0] + tile.head * p.dbias_stride[1] + row * p.dbias_stride[2] +
              key * p.dbias_stride[3]] = x;
  };
  __syncthreads();
  store_pairs<false>(sm, 0, sum);
  __syncthreads();
  const auto at = [&](i32 row, i32 key) { return load_one(sm + row * kLayout.pair_pitch + 4 * key); };
  const i32 thread = static_cast<i32>(threadIdx.x);
  if (tile.one_row && tile.one_key) {
    for (i32 i = thread; i < kBlock * kBlock; i += kPlainThreads)
      write(tile.row + i / kBlock, tile.key + i % kBlock, at(i / kBlock, i % kBlock));
    return;
  }
  float own = 0.0f;  // of row or key number `thread`
  for (i32 i = 0; thread < kBlock && i < kBlock; ++i) own += tile.one_key ? at(i, thread) : at(thread, i);
  if (tile.one_row || tile.one_key) {
    if (thread < kBlock) write(tile.one_row ? tile.row + thread : 0, tile.one_key ? tile.key + thread : 0, own);
    return;
  }
  __syncthreads();
  if (thread < kBlock) store_word(sm + 4 * thread, __float_as_int(own));
  __syncthreads();
  if (thread != 0) return;
  own = 0.0f;
  for (i32 i = 0; i < kBlock; ++i) own += load_one(sm + 4 * i);
  write(0, 0, own);
}

}  // namespace onepass::cuda::backward_plain

extern "C" __global__ void __launch_bounds__(onepass::kPlainThreads, 1)
    attention_backward_plain_bias(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_plain;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const BiasTile tile = BiasTile::of(p, static_cast<i32>(blockIdx.x));
  Pairs sum;
  clear_pairs(sum);
#pragma unroll 1
  for (i32 batch = tile.one_batch ? tile.batch : 0; batch < (tile.one_batch ? tile.batch + 1 : p.batch); ++batch) {
#pragma unroll 1
    for (i32 head = tile.one_head ? tile.head : 0; head < (tile.one_head ? tile.head + 1 : p.heads); ++head)
      add_pairs(p, sm, tile, batch, head, sum);
  }
  write_bias(p, sm, tile, sum);
}
