// The derivatives of dK, dV and the slopes' gradient along the tangents, for Hopper: a CTA holds 128 keys of a head of
// K and V, and blocks of the rows that see them stream past, of every query head that shares it. The roles are those of
// rows.cuh. A warpgroup's work on a block of rows, of 64 keys:
//
//   S^T = K Q^T, dP^T = V dO^T, and their derivatives                both operands from shared memory
//   P^T, dS^T and their derivatives, pair by pair                    A operands of the next products
//   tdV += tP^T dO + P^T tdO, tdK += tdS^T Q + dS^T tQ               rows read transposed
#pragma once
#include "cuda/backward_jvp/sm90/consumer.cuh"
#include "cuda/backward_jvp/sm90/producer.cuh"

namespace onepass::cuda::backward_jvp::sm90 {

// f(x, first) for every block of rows of the query heads; x: of the head's first row. open(x) at each head, close(x)
// behind it.
template <class Open, class F, class Close>
DEV void each_rows(const PlainBackwardParams& p, const KeyTile& k, const Open& open, const F& f, const Close& close) {
#pragma unroll 1
  for (i32 head = k.head * p.heads_per_kv; head < (k.head + 1) * p.heads_per_kv; ++head) {
    const WorkTile x = rows_of(k, head, 0);
    open(x);
    each_block<true>(p, x, k.key, band_of(p, x.seq_q, x.seq_k), [&](i32 first) { f(x, first); });
    close(x);
  }
}

DEV void produce_keys(const Pass<true>::Memory& memory, const Maps& maps, const PlainBackwardParams& p,
                      const KeyTile& k) {
  Producer<true> to{memory, maps, p};
  to.load_held(k.k_begin + k.key, k.head, k.map_batch);
  const auto none = [](const WorkTile&) {};
  each_rows(p, k, none, [&](const WorkTile& x, i32 first) { to.load_block(x, x.head, first); }, none);
}

DEV void consume_keys(const Pass<true>::Memory& memory, u32 group, const PlainBackwardParams& p, const KeyTile& k) {
  using P = Pass<true>;
  constexpr bool kOfScores = backward_features.dk || backward_features.dslopes;
  Consumer<true> c{memory, group};
  const i32 own = k.key + static_cast<i32>(c.warp_row());
  HeadScores scores{p};
  Band32::Range seen;
  float slope;
  Fragment<float, kQkN / 2> dk;
  Fragment<float, kVN / 2> dv;
  fill(dk, 0.0f);
  fill(dv, 0.0f);
  c.begin_turns();
  memory.held().wait();
  const auto open = [&](const WorkTile& x) {
    scores.open(x);
    seen = seen_by_keys(scores.band, k.key + static_cast<i32>(c.group_row()), kGroupRows);
    slope = 0.0f;
  };
  const auto block = [&](const WorkTile&, i32 first) {
    if (first >= seen.hi || first + P::kStreamed <= seen.lo) return c.pass_block();
    BlockProducts<P::kScores> products;
    c.block_scores<kOfScores>(products);
    TermOperands<P::kScores> to;
    find_terms<true>(p, scores, products, to, own, first,
                     StreamedNumbers<P::kStreamed>{memory.numbers(c.right.state.slot), {}},
                     [&](i32 row, i32 key, float side) {
                       if constexpr (backward_features.dslopes) slope -= side * scores.distance(row, key);
                     });
    if constexpr (backward_features.dv) {
      fence_operand(to.v[0]);
      if constexpr (plain_features.tdout) fence_operand(to.other_v[0]);
      fence_operand(dv);
    }
    if constexpr (backward_features.dk) {
      fence_operand(to.x[0]);
      fence_operand(to.other_x[0]);
      fence_operand(dk);
    }
    wgmma_fence();
    if constexpr (backward_features.dv) c.issue_right(dv, to);
    if constexpr (backward_features.dk) c.issue_left(dk, to);
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (backward_features.dv) fence_operand(dv);
    if constexpr (backward_features.dk) fence_operand(dk);
    c.right.release(c.releases());
    c.left.release(c.releases());
  };
  each_rows(p, k, open, block, [&](const WorkTile& x) {
    if constexpr (backward_features.dslopes) write_slope(p, k, x.head, own, slope, true);
  });
  const auto at = [&](const long long(&stride)[3]) {
    return k.map_batch * stride[0] + k.head * stride[1] + k.k_begin * stride[2];
  };
  float probe = 0.0f;
  if constexpr (backward_features.dk)
    probe += write_sums<features.dim_qk>(dk, p.dk, at(p.dk_stride), p.dk_stride[2], own, k.seq_k, FragmentColumns{});
  if constexpr (backward_features.dv)
    probe += write_sums<features.dim_v>(dv, p.dv, at(p.dv_stride), p.dv_stride[2], own, k.seq_k, FragmentColumns{});
  mark<1>(p.key_marks, key_place(p, k.head, k.batch) + own / kBlock, own, k.seq_k, probe, 0);
}

}  // namespace onepass::cuda::backward_jvp::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::cuda::backward_jvp::sm90::Config::threads(), 1)
    attention_backward_jvp_keys(const __grid_constant__ onepass::cuda::backward_jvp::sm90::Maps maps,
                                const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_jvp::sm90;
  using onepass::cuda::backward_jvp::Work;
  extern __shared__ __align__(1024) unsigned char smem[];
  const Pass<true>::Memory memory{shared_address(smem)};
  const auto [head, tile] = Work::of(static_cast<i32>(blockIdx.x), p.heads_kv, p.key_tiles, p.key_group);
  const KeyTile k = keys_of_block<kHeld>(p, head, tile);
  if (!k.exists()) return;
  run_roles<true>(
      memory, [&] { produce_keys(memory, maps, p, k); }, [&](u32 group) { consume_keys(memory, group, p, k); });
}
