// The derivative of dQ along the tangents: a CTA holds a tile of query rows of a head, and the keys that they see
// stream past it. A warp's work on a block of keys, of sixteen rows:
//
//   S = Q K^T, tS = tQ K^T + Q tK^T;  dP = dO V^T, tdP = tdO V^T + dO tV^T      fp32 sums in registers
//   P, dS and their derivatives, pair by pair (backward_plain/pair.cuh)         left operands of the next products
//   tdQ += tdS K + dS tK                                                       K and tK read transposed
#pragma once
#include "cuda/backward_jvp/sums.cuh"

extern "C" __global__ void __launch_bounds__(onepass::mma::kThreads, onepass::mma::config.blocks)
    attention_backward_jvp_rows(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_jvp;
  extern __shared__ __align__(128) unsigned char smem[];
  using P = Pass<false>;
  constexpr SecondLayout l = P::kLayout;
  constexpr i32 kKeys = P::kStreamed, kScores = kKeys / 2;
  const u32 sm = shared_address(smem);
  const auto [head, tile] = Work::of(static_cast<i32>(blockIdx.x), p.heads, p.row_tiles, p.row_group);
  const WorkTile x = rows_of_block<P::kHeld>(p, head, features.bounded_right ? p.row_tiles - 1 - tile : tile);
  if (!x.exists()) return;
  if (threadIdx.x == 0) store_bases<false>(sm, p, x);
  copy_held<false>(sm, p, x, head, x.row);
  HeadScores scores{p};
  scores.open(x);
  const i32 own = x.row + static_cast<i32>(sm80::own_rows());
  const OwnNumbers numbers = OwnNumbers::of_rows(p, x, own);
  float sum[1][kOwnSums<features.dim_qk>];
  clear(sum);
  __syncthreads();  // the bases are there
  const Band32::Range keys = seen_by_rows(scores.band, x.row, P::kHeld), seen = seen_by_rows(scores.band, own, 16);
  each_block<false>(sm, p, x, 0, keys.lo, keys.hi, [&](u32 stage, i32 first) {
    if (first >= seen.hi || first + kKeys <= seen.lo) return;
    BlockProducts<kScores> products;
    multiply_block<false, true>(products, sm, stage);
    TermOperands<kScores> to;
    find_terms<false>(p, scores, products, to, own, first, numbers, [](i32, i32, float) {});
    add_rows<kKeys, l.pitch[kLeft]>(sum, to.x, stage + l.block[kLeft]);
    add_rows<kKeys, l.pitch[kLeft]>(sum, to.other_x, stage + l.block[kLeftMoved]);
  });
  const i64 at = x.map_batch * p.dq_stride[0] + head * p.dq_stride[1] + x.q_begin * p.dq_stride[2];
  const float probe = write_sums<features.dim_qk>(sum[0], p.dq, at, p.dq_stride[2], own, x.seq_q, OwnColumns{});
  mark<kShare>(p.row_marks, place_of(p, head, first_q_block(p, x.batch) + own / kBlock), own, x.seq_q, probe,
               own_share());
}
