// The state of a consumer warpgroup in either pass, and the steps of its work on a block.
#pragma once
#include "cuda/backward_jvp/sm90/products.cuh"

namespace onepass::cuda::backward_jvp::sm90 {

template <bool kKeys>
struct Consumer {
  using P = Pass<kKeys>;
  const typename P::Memory& memory;
  const u32 group;
  Pipeline<P::kLayout.left> left = memory.left();
  Pipeline<P::kLayout.right> right = memory.right();

  DEV u32 group_row() const { return group * kGroupRows; }  // this warpgroup's first, within the tile
  DEV u32 warp_row() const { return group_row() + threadIdx.x / 32 % kGroupWarps * 16; }
  static DEV bool releases() { return threadIdx.x % 32 == 0; }

  // Warpgroups issue the scores' products in turns, so that one's pairs run under another's products. The first turn is
  // the first one's.
  DEV void begin_turns() const {
    if (group == kGroups - 1) bar_arrive(kTurn, 2 * kGroupThreads);
  }
  DEV void take_turn() const { bar_sync(kTurn + group, 2 * kGroupThreads); }
  DEV void end_turn() const { bar_arrive(kTurn + (group + 1 == kGroups ? 0 : group + 1), 2 * kGroupThreads); }
  // A block that none of this warpgroup's tokens sees.
  DEV void pass_block() {
    take_turn();
    end_turn();
    left.wait();
    left.release(releases());
    right.wait();
    right.release(releases());
  }

  // kOfScores: more than V's gradient is wanted.
  template <bool kOfScores>
  DEV void block_scores(BlockProducts<P::kScores>& x) const {
    const u32 held = memory.held().stage() + group_row() * kBlockColumnBytes;
    take_turn();
    left.wait();
    wgmma_fence();
    multiply_both<kKeys, kQkN, kQkBlocks, true, true>(x.s[0], x.moved_s[0], held, left.stage());
    right.wait();  // the numbers of rows come with it
    if constexpr (kOfScores)
      multiply_both<kKeys, kVN, kVBlocks, kMovesHeld<kKeys>, kMovesStreamed<kKeys>>(
          x.dp[0], x.moved_dp[0], held + P::kLayout.held_right, right.stage());
    wgmma_commit();
    end_turn();
    wgmma_wait<0>();
    fence_operand(x.s[0]);
    fence_operand(x.moved_s[0]);
    if constexpr (kOfScores) {
      fence_operand(x.dp[0]);
      fence_operand(x.moved_dp[0]);
    } else {
      fill(x.dp[0], 0.0f);
      fill(x.moved_dp[0], 0.0f);
    }
  }
  // dq or dk: += dS's derivative times a streamed block, and dS times its tangent.
  DEV void issue_left(Fragment<float, kQkN / 2>& sum, const TermOperands<P::kScores>& w) const {
    accumulate<kKeys, kQkN, P::kScores>(sum, w.x[0], left.stage());
    accumulate<kKeys, kQkN, P::kScores>(sum, w.other_x[0], left.stage() + kQkBlocks * P::kBlockBytes);
  }
  DEV void issue_right(Fragment<float, kVN / 2>& sum, const TermOperands<P::kScores>& w) const {
    accumulate<kKeys, kVN, P::kScores>(sum, w.v[0], right.stage());
    if constexpr (plain_features.tdout)
      accumulate<kKeys, kVN, P::kScores>(sum, w.other_v[0], right.stage() + kVBlocks * P::kBlockBytes);
  }
};

// A kernel of two roles: produce(), by one warp, and consume(group).
template <bool kKeys, class Produce, class Consume>
DEV void run_roles(const typename Pass<kKeys>::Memory& memory, const Produce& produce, const Consume& consume) {
  const u32 group = warp_uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) {
    if (memory.base & 1023) __trap();  // the swizzle pattern is a function of the address
    memory.held().init(kGroupWarps * kGroups);
    memory.left().init(kGroupWarps * kGroups);
    memory.right().init(kGroupWarps * kGroups);
    mbar_init_fence();
  }
  __syncthreads();
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    if (warp_uniform(threadIdx.x / 32) == 0) produce();
  } else {
    registers_up<config.consumer_registers>();
    consume(group - 1);
  }
}

struct FragmentColumns {
  DEV i32 operator()(i32 j, u32 quad) const { return column_of(j, quad); }
};

}  // namespace onepass::cuda::backward_jvp::sm90
