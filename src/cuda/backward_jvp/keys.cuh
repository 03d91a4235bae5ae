// The derivatives of dK, dV and the slopes' gradient along the tangents: a CTA holds a tile of keys of a head of K and
// V, and the rows that see them stream past it, of every query head that shares it. A warp's work on a block of rows,
// of sixteen keys:
//
//   S^T = K Q^T, dP^T = V dO^T, and their derivatives                fp32 sums in registers
//   P^T, dS^T and their derivatives, pair by pair                    left operands of the next products
//   tdV += tP^T dO + P^T tdO, tdK += tdS^T Q + dS^T tQ               rows read transposed
#pragma once
#include "cuda/backward_jvp/sums.cuh"

extern "C" __global__ void __launch_bounds__(onepass::mma::kThreads, onepass::mma::config.blocks)
    attention_backward_jvp_keys(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_jvp;
  extern __shared__ __align__(128) unsigned char smem[];
  using P = Pass<true>;
  constexpr SecondLayout l = P::kLayout;
  constexpr i32 kRows = P::kStreamed, kScores = kRows / 2;
  constexpr bool kOfScores = backward_features.dk || backward_features.dslopes;
  const u32 sm = shared_address(smem);
  const auto [key_head, tile] = Work::of(static_cast<i32>(blockIdx.x), p.heads_kv, p.key_tiles, p.key_group);
  const KeyTile k = keys_of_block<P::kHeld>(p, key_head, tile);
  if (!k.exists()) return;
  copy_held<true>(sm, p, rows_of(k, 0, 0), k.head, k.key);
  const i32 own = k.key + static_cast<i32>(sm80::own_rows());
  float dk[1][kOwnSums<features.dim_qk>], dv[1][kOwnSums<features.dim_v>];
  clear(dk);
  clear(dv);
#pragma unroll 1
  for (i32 head = k.head * p.heads_per_kv; head < (k.head + 1) * p.heads_per_kv; ++head) {
    const WorkTile x = rows_of(k, head, 0);
    HeadScores scores{p};
    scores.open(x);
    if (threadIdx.x == 0) store_bases<true>(sm, p, x);
    __syncthreads();  // the bases are there
    const Band32::Range rows = seen_by_keys(scores.band, k.key, P::kHeld), seen = seen_by_keys(scores.band, own, 16);
    float slope = 0.0f;
    each_block<true>(sm, p, x, k.key, rows.lo, rows.hi, [&](u32 stage, i32 first) {
      if (first >= seen.hi || first + kRows <= seen.lo) return;
      BlockProducts<kScores> products;
      multiply_block<true, kOfScores>(products, sm, stage);
      TermOperands<kScores> to;
      find_terms<true>(p, scores, products, to, own, first, StreamedNumbers<kRows>{stage + l.numbers, {}},
                       [&](i32 row, i32 key, float side) {
                         if constexpr (backward_features.dslopes) slope -= side * scores.distance(row, key);
                       });
      if constexpr (backward_features.dv) {
        add_rows<kRows, l.pitch[kRight]>(dv, to.v, stage + l.block[kRight]);
        if constexpr (plain_features.tdout)
          add_rows<kRows, l.pitch[kRight]>(dv, to.other_v, stage + l.block[kRightMoved]);
      }
      if constexpr (backward_features.dk) {
        add_rows<kRows, l.pitch[kLeft]>(dk, to.x, stage + l.block[kLeft]);
        add_rows<kRows, l.pitch[kLeft]>(dk, to.other_x, stage + l.block[kLeftMoved]);
      }
    });
    if constexpr (backward_features.dslopes) write_slope(p, k, head, own, slope, own_share() == 0);
  }
  const auto at = [&](const long long(&stride)[3]) {
    return k.map_batch * stride[0] + k.head * stride[1] + k.k_begin * stride[2];
  };
  float probe = 0.0f;
  if constexpr (backward_features.dk)
    probe += write_sums<features.dim_qk>(dk[0], p.dk, at(p.dk_stride), p.dk_stride[2], own, k.seq_k, OwnColumns{});
  if constexpr (backward_features.dv)
    probe += write_sums<features.dim_v>(dv[0], p.dv, at(p.dv_stride), p.dv_stride[2], own, k.seq_k, OwnColumns{});
  mark<kShare>(p.key_marks, key_place(p, k.head, k.batch) + own / kBlock, own, k.seq_k, probe, own_share());
}
