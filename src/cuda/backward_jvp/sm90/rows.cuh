// The derivative of dQ along the tangents, for Hopper: a CTA holds 128 query rows of a head, and blocks of the keys
// that they see stream past. One producer warp issues TMA, and two consumer warpgroups have 64 of the rows each. The
// work of one on a block:
//
//   S = Q K^T, tS = tQ K^T + Q tK^T;  dP = dO V^T, tdP = tdO V^T + dO tV^T      both operands from shared memory
//   dS and its derivative, pair by pair (backward_plain/pair.cuh)               A operands of the next products
//   tdQ += tdS K + dS tK                                                       K and tK read transposed
//
// A warpgroup waits for each of its products: its registers hold no second block. The other one's run meanwhile.
#pragma once
#include "cuda/backward_jvp/sm90/consumer.cuh"
#include "cuda/backward_jvp/sm90/producer.cuh"

namespace onepass::cuda::backward_jvp::sm90 {

DEV void produce_rows(const Pass<false>::Memory& memory, const Maps& maps, const PlainBackwardParams& p,
                      const WorkTile& x) {
  Producer<false> to{memory, maps, p};
  to.load_held(x.q_begin + x.row, x.head, x.map_batch);
  each_block<false>(p, x, 0, band_of(p, x.seq_q, x.seq_k),
                    [&](i32 first) { to.load_block(x, x.head / p.heads_per_kv, first); });
}

DEV void consume_rows(const Pass<false>::Memory& memory, u32 group, const PlainBackwardParams& p, const WorkTile& x) {
  using P = Pass<false>;
  Consumer<false> c{memory, group};
  HeadScores scores{p};
  scores.open(x);
  const i32 own = x.row + static_cast<i32>(c.warp_row());
  const OwnNumbers numbers = OwnNumbers::of_rows(p, x, own);
  const Band32::Range seen = seen_by_rows(scores.band, x.row + static_cast<i32>(c.group_row()), kGroupRows);
  Fragment<float, kQkN / 2> sum;
  fill(sum, 0.0f);
  c.begin_turns();
  memory.held().wait();
  each_block<false>(p, x, 0, scores.band, [&](i32 first) {
    if (first >= seen.hi || first + P::kStreamed <= seen.lo) return c.pass_block();
    BlockProducts<P::kScores> products;
    c.block_scores<true>(products);
    c.right.release(c.releases());
    TermOperands<P::kScores> to;
    find_terms<false>(p, scores, products, to, own, first, numbers, [](i32, i32, float) {});
    fence_operand(to.x[0]);
    fence_operand(to.other_x[0]);
    fence_operand(sum);
    wgmma_fence();
    c.issue_left(sum, to);
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(sum);
    c.left.release(c.releases());
  });
  const i64 at = x.map_batch * p.dq_stride[0] + x.head * p.dq_stride[1] + x.q_begin * p.dq_stride[2];
  const float probe = write_sums<features.dim_qk>(sum, p.dq, at, p.dq_stride[2], own, x.seq_q, FragmentColumns{});
  mark<1>(p.row_marks, place_of(p, x.head, first_q_block(p, x.batch) + own / kBlock), own, x.seq_q, probe, 0);
}

}  // namespace onepass::cuda::backward_jvp::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::cuda::backward_jvp::sm90::Config::threads(), 1)
    attention_backward_jvp_rows(const __grid_constant__ onepass::cuda::backward_jvp::sm90::Maps maps,
                                const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_jvp::sm90;
  using onepass::cuda::backward_jvp::Work;
  extern __shared__ __align__(1024) unsigned char smem[];
  const Pass<false>::Memory memory{shared_address(smem)};
  const auto [head, tile] = Work::of(static_cast<i32>(blockIdx.x), p.heads, p.row_tiles, p.row_group);
  const WorkTile x = rows_of_block<kHeld>(p, head, features.bounded_right ? p.row_tiles - 1 - tile : tile);
  if (!x.exists()) return;
  run_roles<false>(
      memory, [&] { produce_rows(memory, maps, p, x); }, [&](u32 group) { consume_rows(memory, group, p, x); });
}
