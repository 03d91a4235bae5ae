// dK and dV, or their derivatives, and parts of the slopes' gradient: a CTA for each block of keys of each head of K
// and V goes through the rows that see them, of every query head that shares it.
#pragma once
#include "cuda/backward_plain/pairs.cuh"
#include "cuda/backward_plain/sums.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::cuda::backward_plain {

// The sum over the CTA, in thread 0.
DEV float block_sum(u32 sm, float x) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) store_word(sm + threadIdx.x / 32 * 4, __float_as_int(x));
  __syncthreads();
  float sum = 0.0f;
  for (u32 i = 0; i < kPlainThreads / 32; ++i) sum += load_one(sm + 4 * i);
  return sum;
}

}  // namespace onepass::cuda::backward_plain

extern "C" __global__ void __launch_bounds__(onepass::kPlainThreads, 1)
    attention_backward_plain_keys(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_plain;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const KeyTile k =
      keys_of_block(p, static_cast<i32>(blockIdx.x) / p.k_blocks, static_cast<i32>(blockIdx.x) % p.k_blocks);
  if (!k.exists() || is_done(p.key_marks, key_place(p, k.head, k.batch) + k.key / kBlock, k.seq_k - k.key)) return;
  constexpr bool kScores = backward_features.dk || backward_features.dslopes;
  Sums<features.dim_qk> dk;
  Sums<features.dim_v> dv;
  dk.clear();
  dv.clear();
#pragma unroll 1
  for (i32 head = k.head * p.heads_per_kv; head < (k.head + 1) * p.heads_per_kv; ++head) {
    WorkTile x = rows_of(k, head, 0);
    HeadScores scores{p};
    scores.open(x);
    const Band32::Range rows = rows_that_see(scores.band, k.key, min(k.key + kBlock, k.seq_k));
    float slope = 0.0f;
#pragma unroll 1
    for (x.row = rows.lo / kBlock * kBlock; x.row < rows.hi; x.row += kBlock) {
      if (is_empty(p, x, k.key)) continue;
      PairTerms t;
      find_terms<kScores, false>(p, sm, scores, x, k.key, t, [&](i32 row, i32 key, float side) {
        if constexpr (backward_features.dslopes) slope -= side * scores.distance(row, key);
      });
      if constexpr (backward_features.dv) {
        store_pairs<false>(sm, 0, t.v);
        if constexpr (plain_features.tdout) store_pairs<false>(sm, 1, t.other_v);
        dv.template add<kOutput, plain_features.tdout>(sm, query_rows(p.dout, p.dout_stride, x),
                                                       query_rows(p.tdout, p.tdout_stride, x));
        if constexpr (backward_features.dk) __syncthreads();  // all reads of these pairs are done
      }
      if constexpr (backward_features.dk) {
        store_pairs<false>(sm, 0, t.x);
        if constexpr (kTangents) store_pairs<false>(sm, 1, t.other_x);
        dk.template add<kInput, kTangents>(sm, query_rows(p.q, p.q_stride, x), query_rows(p.tq, p.tq_stride, x));
      }
    }
    if constexpr (backward_features.dslopes) {
      slope = block_sum(sm, slope);
      float* const parts = slope_part(p, k, head, k.key);
      if (threadIdx.x < backward_shape.key_warps) parts[threadIdx.x] = threadIdx.x == 0 ? slope : 0.0f;
    }
  }
  const auto rows_of_k = [&](const long long(&stride)[3]) {
    return rows_at(nullptr, stride, k.map_batch, k.head, k.k_begin + k.key, k.seq_k - k.key);
  };
  if constexpr (backward_features.dk) dk.write(p.dk, rows_of_k(p.dk_stride));
  if constexpr (backward_features.dv) dv.write(p.dv, rows_of_k(p.dv_stride));
}
