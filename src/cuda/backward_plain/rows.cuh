// dQ or its derivative: a CTA for each block of query rows of each head goes through the keys that they see.
#pragma once
#include "cuda/backward_plain/pairs.cuh"
#include "cuda/backward_plain/sums.cuh"

extern "C" __global__ void __launch_bounds__(onepass::kPlainThreads, 1)
    attention_backward_plain_rows(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_plain;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const i32 head = static_cast<i32>(blockIdx.x) / p.q_blocks, number = static_cast<i32>(blockIdx.x) % p.q_blocks;
  const WorkTile x = rows_of_block(p, head, features.bounded_right ? p.q_blocks - 1 - number : number);
  if (!x.exists()) return;
  if (is_done(p.row_marks, place_of(p, x.head, first_q_block(p, x.batch) + x.row / kBlock), x.seq_q - x.row)) return;
  HeadScores scores{p};
  scores.open(x);
  Sums<features.dim_qk> sums;
  sums.clear();
  const Band32::Range keys = scores.band.key_range(x.row, min(x.row + kBlock, x.seq_q));
#pragma unroll 1
  for (i32 key = keys.lo / kBlock * kBlock; key < keys.hi; key += kBlock) {
    if (is_empty(p, x, key)) continue;
    PairTerms t;
    find_terms<true, false>(p, sm, scores, x, key, t, [](i32, i32, float) {});
    store_pairs<true>(sm, 0, t.x);
    if constexpr (kTangents) store_pairs<true>(sm, 1, t.other_x);
    sums.template add<kInput, kTangents>(sm, key_rows(p, p.k, p.k_stride, x, key),
                                         key_rows(p, p.tk, p.tk_stride, x, key));
  }
  sums.write(p.dq, query_rows(p.dq, p.dq_stride, x));
}
