// A consumer warpgroup of the MLA kernel: 64 rows, half of O's columns, every second tile's scores.
#pragma once
#include "cuda/decode/combine.cuh"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/mma/fragment.cuh"

namespace onepass::decode {

template <u32 side>  // which of the warpgroups
struct MlaConsumer {
  const DecodeParams& p;
  const u32 sm;
  KeyTiles keys{sm};
  Fragment<float, 128> o;  // 64 rows x 256 columns
  Fragment<float, 32> s;   // 64 rows x 64 keys
  Fragment<u32, 16> weights;
  LaneRows rows;
  LanePlaces places;
  i32 seq_q, seq_k;

  // Not an aggregate: that would set the fragments to 0.
  DEV MlaConsumer(u32 shared, const DecodeParams& params) : p(params), sm(shared) {}

  // Values of the thread's index are computed at every use: there are no registers for them through the loop.
  static DEV u32 warp() { return opaque_thread() / 32 % 4; }  // of the warpgroup's
  static DEV u32 lane() { return opaque_thread() % 32; }
  static DEV i32 own_row() { return static_cast<i32>(warp() * 16 + lane() / 4); }  // and the one 8 rows further
  DEV u32 state(u32 of, i32 row) const { return sm + kLayout.states + (of * kRows + static_cast<u32>(row)) * 16; }

  DEV void open(const Group& g) {
    seq_q = g.seq_q, seq_k = g.seq_k;
    for (int i = 0; i < 2; ++i) rows.state[i] = {}, rows.norm[i] = 0.0f;
    rows.forget();
    fill(o, 0.0f);
    places.open(p, g, static_cast<i32>(warp() * 16));
  }

  // ------------------------------------------------------------------------------------------------------ products
  // 64 columns of K and of Q, or the four depths of 16 within them.
  DEV void multiply_block(u32 t, u32 block, i32 accumulate) {
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      Wgmma<kBlockN>::shared(s, smem_descriptor(sm + kLayout.q, 16, block * kBlockBytes + k * 32),
                             smem_descriptor(keys.tile(t), 16, block * kBlockBytes + k * 32), k == 0 ? accumulate : 1);
    }
  }
  // S of the own tile, by halves as they come; the own half comes first.
  DEV void issue_scores() {
    keys.wait(side, side);
    wgmma_fence();
#pragma unroll
    for (u32 b = 0; b < kHalfBlocks; ++b) multiply_block(side, side * kHalfBlocks + b, b != 0);
    keys.wait(side, side ^ 1);
    wgmma_fence();
#pragma unroll
    for (u32 b = 0; b < kHalfBlocks; ++b) multiply_block(side, (side ^ 1) * kHalfBlocks + b, 1);
    multiply_block(side, kQkBlocks - 1, 1);
    wgmma_commit();
  }
  // O += P V of the own tile, with the weights in registers; of the other one, with those that it left.
  DEV void issue_own_accumulate() {
    fence_operand(weights);
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < 4; ++k)
      Wgmma<256>::registers_mnmajor(o, weights + 4 * k, smem_descriptor(keys.half(side, side), kBlockBytes, k * 2048),
                                    1);
    wgmma_commit();
  }
  DEV void issue_other_accumulate() {
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < 4; ++k)
      Wgmma<256>::shared_mnmajor(o, smem_descriptor(keys.rotary(side ^ 1), 16, k * 32),
                                 smem_descriptor(keys.half(side ^ 1, side), kBlockBytes, k * 2048), 1);
    wgmma_commit();
  }
  DEV void scores_ready() {
    wgmma_wait<0>();
    fence_operand(s);
  }
  DEV void output_ready() {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(weights);
  }

  // ------------------------------------------------------------------------------------------------------- softmax
  DEV bool softmax_lazily(i32 tile, bool fresh) {
    Group g;
    g.seq_q = seq_q, g.seq_k = seq_k;
    LaneScores{p, g, places, sm + kLayout.trees + 8 * static_cast<u32>(own_row())}.apply(s, tile * kBlockN);
    rows.see(s, unit_of(p).unit);
    return !fresh && softmax_lazy<Element, kRoundedSums>(s, weights, rows, unit_of(p), KeepAll{});
  }
  DEV void softmax_again() { softmax_exact<Element, kRoundedSums>(s, weights, o, rows, unit_of(p), KeepAll{}); }

  // The weights for the other warpgroup, and what they refer to.
  DEV void put_weights() const {
    const u32 row = warp() * 16 + lane() % 16;
#pragma unroll
    for (u32 k = 0; k < 4; ++k)
      stmatrix4(swizzled(keys.rotary(side), row, 2 * k + lane() / 16), weights[4 * k], weights[4 * k + 1],
                weights[4 * k + 2], weights[4 * k + 3]);
    if (lane() % 4 == 0) {
      store_word(state(side, own_row()), __float_as_int(rows.state[0].m));
      store_word(state(side, own_row() + 8), __float_as_int(rows.state[1].m));
    }
    async_proxy_fence();
  }
  // Takes over the reference of the other warpgroup's weights.
  DEV void follow() {
    const float m[2] = {load_one(state(side ^ 1, own_row())), load_one(state(side ^ 1, own_row() + 8))};
    if (!__any_sync(0xffffffffu, m[0] != rows.state[0].m || m[1] != rows.state[1].m)) return;
    float alpha[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      alpha[i] = unit_of(p).meet(rows.state[i], m[i]).alpha;
      if constexpr (kRoundedSums) rows.norm[i] *= alpha[i];
    }
    multiply_two_rows(o, alpha[0], alpha[1]);
  }
  // Keys behind the sequence's last one have weights of 0, which whatever stands there must not meet. (Beyond the end
  // of the tensor, TMA has written zeros.)
  DEV void clear_tail(u32 t, i32 tile) const {
    if constexpr (!features.cache() || config.gathers()) return;
    const i32 first = seq_k - tile * kBlockN;
    if (first >= kBlockN) return;
    for (i32 i = static_cast<i32>(threadIdx.x % 128); i < (kBlockN - first) * 8; i += 128) {
#pragma unroll
      for (u32 b = 0; b < kHalfBlocks; ++b)
        store_four(keys.half(t, side) + b * kBlockBytes + static_cast<u32>(first * 128 + i * 16), 0, 0, 0, 0);
    }
    async_proxy_fence();
    bar_sync(kWarpgroup + side, 128);
  }

  // --------------------------------------------------------------------------------------------------------- turns
  // A pair of tiles, in the order of time; each warpgroup has half of O's columns:
  //
  //   left warpgroup            | right warpgroup
  //   S of tile i               | S of tile i + 1
  //   softmax; hands over P     |
  //   O += P V of tile i        | takes P; O += P V of tile i
  //                             | softmax of tile i + 1 under it; hands over P
  //   takes P                   | O += P V of tile i + 1
  //   O += P V of tile i + 1    |
  DEV void turn(i32 tile, bool fresh, bool pair) {
    if constexpr (side == 0)
      left_turn(tile, fresh, pair);
    else
      right_turn(tile, pair);
  }
  // The step of the left warpgroup, which goes first: its tile, then O of the right one's tile, if there is one.
  DEV void left_turn(i32 tile, bool fresh, bool pair) {
    issue_scores();
    scores_ready();
    if (!softmax_lazily(tile, fresh)) softmax_again();
    put_weights();
    bar_arrive(kLeftWeights, kThreads);
    clear_tail(0, tile);
    issue_own_accumulate();
    output_ready();
    keys.release(0, 0);
    ++keys.uses[0];
    if (!pair) return;
    bar_sync(kRightWeights, kThreads);
    follow();
    keys.wait(1, 0);
    clear_tail(1, tile + 1);
    issue_other_accumulate();
    output_ready();
    keys.release(1, 0);
    ++keys.uses[1];
  }
  // The step of the right warpgroup: its softmax overlaps O of the left one's tile.
  DEV void right_turn(i32 tile, bool pair) {
    if (!pair) {
      take_left(tile);
      output_ready();
      keys.release(0, 1);
      ++keys.uses[0];
      return;
    }
    issue_scores();
    take_left(tile);
    wgmma_wait<1>();
    fence_operand(s);
    const bool lazy = softmax_lazily(tile + 1, false);
    output_ready();
    keys.release(0, 1);
    if (!lazy) softmax_again();
    put_weights();
    bar_arrive(kRightWeights, kThreads);
    clear_tail(1, tile + 1);
    issue_own_accumulate();
    output_ready();
    keys.release(1, 1);
    ++keys.uses[0], ++keys.uses[1];
  }
  DEV void take_left(i32 tile) {
    bar_sync(kLeftWeights, kThreads);
    follow();
    keys.wait(0, 1);
    clear_tail(0, tile);
    issue_other_accumulate();
  }
};

}  // namespace onepass::decode
