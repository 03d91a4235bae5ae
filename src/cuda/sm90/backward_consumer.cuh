// What a consumer warpgroup of the backward pass holds, and the steps of its loop (backward.cuh).
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward_epilogue.cuh"
#include "cuda/sm90/backward_products.cuh"
#include "cuda/sm90/backward_scores.cuh"

namespace onepass::sm90 {

// The same bit in every lane, and provably so: descriptors that depend on it stay in uniform registers. A vote does not
// queue behind shared memory as a shuffle does.
DEV u32 voted(bool x) { return __any_sync(0xffffffffu, x); }

struct BackwardConsumer {
  const SharedMemory& memory;
  const u32 group, lane, warp;  // warp: of the warpgroup
  const BackwardParams& p;
  float s[kBlockM / 2], dp[kBlockM / 2], dq[kDqN / 2], dv[kVN / 2], dk[kQkN / 2];
  float rows[kBlockM / 4];  // LSE or D of this lane's rows: of every sixteen 2 t, + 1, + 8, + 9
  u32 weights[kBlockM / 4], ds[kBlockM / 4];
  // Blocks and tiles so far: every pipeline's position follows from them. Their parities, uniform.
  u32 block = 0, tiles = 0, odd_block = 0, odd_tile = 0;
  BlockWalk at;
  KeyScores scores{p};
  i32 accumulate = 0;  // whether dV and dK hold anything yet
  bool fresh = true;   // the same of the block whose dQ comes next: a tile's first block follows another tile's last
  bool has_q = false, has_dout = false, has_ds = true;  // answers of barriers, asked ahead of the time

  DEV BackwardConsumer(const SharedMemory& shared, u32 warpgroup, const BackwardParams& params)
      : memory(shared), group(warpgroup), lane(threadIdx.x % 32), warp(warp_uniform(threadIdx.x / 32 % 4)), p(params) {}

  DEV void arrive(u32 bar) const {
    if (lane == 0) mbar_arrive(bar);
  }
  // Statistics lie so that one load serves eight scores; shared memory is slow while products run, so they are read
  // well ahead of their use.
  DEV void load_statistics(u32 from, int c) {
    i32 x[4];
    load_four(from + lane % 4 * 16 + c * 64, x[0], x[1], x[2], x[3]);
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[4 * c + e] = __int_as_float(x[e]);
  }
  DEV void load_statistics(u32 from) {
#pragma unroll
    for (int c = 0; c < static_cast<int>(kBlockM / 16); ++c) load_statistics(from, c);
  }
  DEV float of_row(int j) const { return rows[j / 8 * 4 + (j & 1) + (j >> 2 & 1) * 2]; }  // of score j

  DEV i32 first_key(const KeyTile& tile) const {  // of this warp
    return tile.key + static_cast<i32>(group * kGroupKeys + warp * 16);
  }
  DEV bool next_tile() {
    memory.k().at(tiles).wait();
    const KeyTile tile = load_key_tile(memory.tile(tiles % 2));
    at = BlockWalk::of(p, tile);
    scores.open(tile, static_cast<i32>(warp_uniform(first_key(tile))));
    accumulate = 0;
    fresh = true;
    odd_tile = voted(tiles & 1);
    return voted(tile.exists());
  }

  DEV void issue_scores() {
    odd_block = voted(block & 1);
    if (!has_q) memory.q().at(block).wait();
    load_statistics(memory.lse(block % 2));
    wgmma_fence();
    issue_keys_by_rows<kQkN>(s, memory.base + kLayout.k.data + odd_tile * kLayout.k.bytes + group * 8192,
                             memory.base + kLayout.q.data + odd_block * kLayout.q.bytes);
  }
  DEV void issue_dp() {
    if (!accumulate) memory.v().at(tiles).wait();
    if (!has_dout) memory.dout().at(block).wait();
    wgmma_fence();
    issue_keys_by_rows<kVN>(dp, memory.base + kLayout.v.data + group * 8192,
                            memory.base + kLayout.dout.data + odd_block * kLayout.dout.bytes);
  }
  // From S under way to P in s and dP in dp, nothing under way.
  DEV void probabilities() {
    issue_dp();
    const bool ds_is_free = memory.ds().at(block).may_acquire();
    wgmma_wait<1>();
    fence_operand(s);
    scores.apply_band(s, at.m * static_cast<i32>(kBlockM));
    const u32 delta = memory.delta(block % 2);
    constexpr bool kInPlace = kBlockM == 128;  // D takes the registers of the LSEs just used
#pragma unroll
    for (int c = 0; c < static_cast<int>(kBlockM / 16); ++c) {
#pragma unroll
      for (int j = 8 * c; j < 8 * c + 8; ++j) s[j] = ex2(fmaf(s[j], p.scale_log2, -of_row(j)));
      if constexpr (kInPlace) load_statistics(delta, c);
    }
    fence_operand(s);
    if (!ds_is_free) memory.ds().at(block).acquire();  // a branch: it also keeps the exponentials above the wait
    if constexpr (!kInPlace) load_statistics(delta);
    has_ds = block == 0 || memory.ds().at(block - 1).has_come();
    wgmma_wait<0>();
    fence_operand(dp);
  }

  // dS of the block before has come from both warpgroups. The fence is the reader's, where nothing is under way: behind
  // issued products it would wait for them.
  DEV void wait_ds() const {
    if (!has_ds) memory.ds().at(block - 1).wait();
    async_proxy_fence();
  }
  // dS into its operand and, as [rows][keys], into shared memory; P into its operand.
  DEV void gradients() {
#pragma unroll
    for (int j = 0; j < static_cast<int>(kBlockM / 2); j += 2) {
      dp[j] = s[j] * (dp[j] - of_row(j));
      dp[j + 1] = s[j + 1] * (dp[j + 1] - of_row(j + 1));
      ds[j / 2] = Element::pack(dp[j], dp[j + 1]);
    }
    const u32 to = memory.base + kLayout.ds.data + block % 2 * kLayout.ds.bytes + group * kBlockM * kBlockColumnBytes;
#pragma unroll
    for (u32 e = 0; e < kBlockM / 16; ++e)
      stmatrix4_transposed(swizzled(to, e * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2), ds[4 * e],
                           ds[4 * e + 1], ds[4 * e + 2], ds[4 * e + 3]);
    __syncwarp();
    arrive(memory.ds().at(block).full());
#pragma unroll
    for (int j = 0; j < static_cast<int>(kBlockM / 2); j += 2) weights[j / 2] = Element::pack(s[j], s[j + 1]);
  }
  // The keys are those of the block before: of the tile before in a tile's first block.
  DEV void issue_dq_before() {
    issue_dq(dq, memory.base + kLayout.ds.data + (odd_block ^ 1) * kLayout.ds.bytes,
             memory.base + kLayout.k.data + (odd_tile ^ static_cast<u32>(fresh)) * kLayout.k.bytes, group);
  }
  DEV void issue_gradients() {
    fence_operand(weights);
    fence_operand(dv);
    fence_operand(ds);
    fence_operand(dk);
    wgmma_fence();
    issue_dq_before();  // of the very first block: idle
    issue_keys_by_columns(dv, weights, memory.base + kLayout.dout.data + odd_block * kLayout.dout.bytes, accumulate);
    issue_keys_by_columns(dk, ds, memory.base + kLayout.q.data + odd_block * kLayout.q.bytes, accumulate);
  }
  DEV void stage_dq() const {
    const u32 to = memory.dq(group).stage() + warp * (kDqN * 64) + lane * 16;
#pragma unroll
    for (u32 u = 0; u < kDqN / 8; ++u)
      store_four(to + u * 512, __float_as_uint(dq[4 * u]), __float_as_uint(dq[4 * u + 1]),
                 __float_as_uint(dq[4 * u + 2]), __float_as_uint(dq[4 * u + 3]));
    __syncwarp();
    arrive(memory.dq(group).full());
  }
  // dQ of the block before is there, of `younger` products that run on.
  DEV void dq_ready(bool stage_is_free) {
    fence_operand(dq);
    if (block == 0) return;
    arrive(memory.ds().at(block - 1).empty());
    if (fresh) arrive(memory.k().at(tiles - 1).empty());
    if (!stage_is_free) memory.dq(group).at(block - 1).acquire();
    stage_dq();
  }
  DEV void gradients_ready() {
    fence_operand(dk);
    fence_operand(ds);
    fence_operand(dv);
    fence_operand(weights);
  }
  DEV void release_rows(u32 used) const {
    arrive(memory.dout().at(used).empty());
    arrive(memory.q().at(used).empty());
  }
  DEV void store_tile() const {
    const KeyTile tile = load_key_tile(memory.tile(tiles % 2));
    const i32 key = first_key(tile), rows = tile.seq_k - key;
    if (p.dv)
      store_gradient<features.dim_v>(p.dv, p.dv_stride, tile.map_batch, tile.head, tile.k_begin + key, rows, dv, 1.0f);
    if (p.dk)
      store_gradient<features.dim_qk>(p.dk, p.dk_stride, tile.map_batch, tile.head, tile.k_begin + key, rows, dk,
                                      p.scale);
  }
};

}  // namespace onepass::sm90
