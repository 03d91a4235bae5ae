// A consumer warpgroup that computes all products of its 64 keys: what it holds, and the steps of its loop
// (backward.cuh).
#pragma once
#include "cuda/mma/mma.cuh"

#include "cuda/sm90/backward/consumer/warp.cuh"

namespace onepass::sm90 {

// columns: of its share of dQ.
template <u32 columns>
struct JointConsumer : BackwardWarp {
  const u32 group;
  ScoreFragment s, dp;
  Fragment<float, columns / 2> dq;
  Fragment<float, kVN / 2> dv;
  Fragment<float, kQkN / 2> dk;
  Statistics rows;
  ScoreWords weights, ds;
  Slopes<kScores> slopes;
  DropoutMask<kScores> dropout_mask;
  bool some_hidden = false;
  u32 seen;                 // the mask's bits of its scores
  i32 accumulate = 0;       // whether dV and dK hold anything yet: not in a tile's first block
  bool overflowed = false;  // some of the tile's dS, if careful
  bool has_q = false, has_dout = false, has_ds = true;  // answers of barriers, asked ahead of the time

  DEV JointConsumer(const SharedMemory& shared, u32 warpgroup, const BackwardParams& params)
      : BackwardWarp(shared, params), group(warpgroup) {
    if constexpr (config.careful) {
      dv_marks().start();
      if constexpr (kMarksDk) dk_marks().start();
    }
  }

  DEV u32 first_key() const { return group * kGroupKeys + warp * 16; }  // of this warp, within the tile
  DEV bool next_tile() {
    accumulate = 0;
    const bool exists = open_tile(first_key(), 0);
    if (config.careful && exists) look_through_keys(p, memory.base + odd_tile * kLayout.k.bytes);
    return exists;
  }
  DEV void load_statistics(u32 from) {
#pragma unroll
    for (int c = 0; c < static_cast<int>(kBlockM / 16); ++c) load_part(rows, from, c);
  }

  DEV void issue_scores() {
    odd_block = warp_any(block & 1);
    seen = scores.seen_scores(at.row());
    if (!has_q) memory.q().at(block).wait();
    load_statistics(memory.lse(block % 2));
    wgmma_fence();
    issue_keys_by_rows<kQkN>(s, memory.base + odd_tile * kLayout.k.bytes + group * (kGroupKeys * kBlockColumnBytes),
                             q_stage());
  }
  DEV void issue_dp() {
    if (!accumulate) memory.v().at(tiles).wait();
    if (!has_dout) memory.dout().at(block).wait();
    wgmma_fence();
    issue_keys_by_rows<kVN>(dp, memory.base + kLayout.v.data + group * (kGroupKeys * kBlockColumnBytes), dout_stage());
  }
  // Which weights dropout leaves, while products are under way.
  DEV void draw_dropout() {
    if constexpr (features.dropout) dropout_mask = scores.dropout_mask<kScores>(at.row());
  }
  // Products become scores. The bias lies where the warp's own part of dS will.
  DEV void add_bias() {
    using Format = ElementOf<config.bias_tiles ? features.bias : ScalarType::f16>::Format;
#pragma unroll
    for (u32 e = 0; e < kBlockM / 16; ++e) {
      u32 pair[4];
      ldmatrix4_transposed(pair, ds_place(group, e));
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        float& low = s[8 * e + 2 * i];
        float& high = s[8 * e + 2 * i + 1];
        low = fmaf(low, p.scale, Format::unpack(static_cast<u16>(pair[i])));
        high = fmaf(high, p.scale, Format::unpack(static_cast<u16>(pair[i] >> 16)));
      }
    }
  }
  // From S under way to P in s and dP in dp, nothing under way.
  DEV void probabilities() {
    issue_dp();
    const bool ds_is_free = memory.ds().at(block).try_acquire();
    bool has_bias = true;
    if constexpr (config.bias_tiles) has_bias = memory.bias().at(block).try_wait();
    wgmma_wait<1>();
    fence_operand(s);
    const u32 delta = memory.delta(block % 2);
    constexpr bool kInPlace = kPlainScores && kBlockM == 128;  // D takes the registers of the LSEs just used
    if constexpr (kPlainScores) {
      if constexpr (config.bias_tiles) {
        if (!has_bias) memory.bias().at(block).wait();
        add_bias();
      }
      some_hidden = scores.plain_weights(s, rows, at.row(), seen, [&](int c) {
        if constexpr (kInPlace) load_part(rows, delta, c);
      });
    } else {
      some_hidden = scores.template probabilities<config.careful>(s, slopes, rows, at.row());
    }
    fence_operand(s);
    if (!ds_is_free) memory.ds().at(block).acquire();  // a branch: it also keeps the exponentials above the wait
    if constexpr (!kInPlace) load_statistics(delta);
    has_ds = block == 0 || memory.ds().at(block - 1).try_wait();
    wgmma_wait<0>();
    fence_operand(dp);
  }

  // dS of the block before has come from both warpgroups. The fence is the reader's, where nothing is under way: behind
  // issued products it would wait for them.
  DEV void wait_ds() const {
    if (!has_ds) memory.ds().at(block - 1).wait();
    async_proxy_fence();
  }
  // dS into its operand and into shared memory; P into its operand.
  DEV void gradients() {
    const EntropyGradients of_entropies = entropies(memory.delta(block % 2));
    if constexpr (kPlainScores)
      scores.plain_gradients(s, dp, dropout_mask, rows, of_entropies, some_hidden);
    else
      scores.template differentiate<config.careful>(s, dp, slopes, dropout_mask, rows, of_entropies, some_hidden,
                                                    at.row(),
                                                    [&](i32 row, i32 key, float g) { scores.add(row, key, g); });
    if constexpr (config.dbias_tiles) stage_dbias();
    if constexpr (config.careful) overflowed = overflowed || overflows(dp);
    pack_fragment(dp, ds);
    store_ds(ds, group);
    pack_kept(s, dropout_mask, weights);
  }
  DEV Marks<kVN / 2> dv_marks() const { return {p, memory, 0}; }
  DEV Marks<kQkN / 2> dk_marks() const { return {p, memory, 1}; }
  // Q and dO as second operands.
  DEV void separate() {
    if constexpr (!config.careful) return;
    const u32 kept_bits = memory.row_bits();
    separate_rows(has_hidden(weights), q_stage(), dout_stage(), kept_bits, [&] {
      const SeenRows seen_rows([&](u32 i) { return weights[i]; });
      seen_rows.mark(dv_marks(), kept_bits);
      if constexpr (kMarksDk) seen_rows.mark(dk_marks(), kept_bits + bits_bytes(features.dim_v, config.block_q));
    });
  }
  // dS as [keys / 32][rows][32 keys] of fp32, in boxes as TMA has them. The stage's uses: dbias of block 0, then of
  // block i, and dQ of i - 1 behind it.
  DEV void stage_dbias() const {
    const auto stage = memory.dq(group).at(2 * block - (block != 0));
    stage.acquire();
    const u32 key = warp * 16 + lane / 4, quad = lane % 4,
              to = stage.stage() + key / 32 * (kBlockM * kBlockColumnBytes);
    each(dp, [&](int j, float x) {
      const u32 column = key % 32 + row_of_element(j) * 8;
      store_word(swizzled(to, static_cast<u32>(column_of(j, quad)), column / 4) + column % 4 * 4, __float_as_int(x));
    });
    __syncwarp();
    arrive(stage.full());
  }
  // The stage of the previous block's dQ; at the end it does not follow a dbias.
  DEV auto dq_stage(bool end = false) const {
    return memory.dq(group).at(config.dbias_tiles ? 2 * block - end : block - 1);
  }
  // True if dQ's stage is free for the previous block; deterministic: its earlier use, by the other reducer.
  DEV bool dq_stage_is_free() const {
    if constexpr (kDeterministic) return memory.order().at(block - 2).try_wait_released();
    return dq_stage().try_acquire();
  }
  DEV void acquire_dq_stage(bool end = false) const {
    if constexpr (kDeterministic)
      memory.order().at(block - 2).wait_released();
    else
      dq_stage(end).acquire();
  }
  // The keys are those of the block before: of the tile before in a tile's first block.
  DEV void issue_dq_before() {
    add_dq_product(dq, ds_stage(odd_block ^ 1) + (kByRows ? group * (64 * kBlockColumnBytes) : 0),
                   memory.base + (odd_tile ^ static_cast<u32>(accumulate == 0)) * kLayout.k.bytes +
                       column_offset(kByRows ? 0 : group * kDqN<0>),
                   false);
    wgmma_commit();
  }
  DEV void issue_gradients() {
    fence_operand(weights);
    fence_operand(dv);
    fence_operand(ds);
    fence_operand(dk);
    wgmma_fence();
    issue_dq_before();  // of the very first block: idle
    issue_keys_by_columns(dv, weights, dout_stage(), accumulate);
    issue_keys_by_columns(dk, ds, q_stage(), accumulate);
  }
  DEV void stage_dq() const {
    const u32 to = memory.dq(group).stage() + warp * (columns * 64) + lane * 16;
#pragma unroll
    for (u32 u = 0; u < columns / 8; ++u)
      store_four(to + u * 512, __float_as_uint(dq[4 * u]), __float_as_uint(dq[4 * u + 1]),
                 __float_as_uint(dq[4 * u + 2]), __float_as_uint(dq[4 * u + 3]));
    __syncwarp();
    arrive(kDeterministic ? memory.order().at(block - 1).full() : memory.dq(group).full());
  }
  // dQ of the block before is there.
  DEV void dq_ready(bool stage_is_free) {
    fence_operand(dq);
    if (block == 0) return;
    arrive(memory.ds().at(block - 1).empty());
    if (!accumulate) arrive(memory.k().at(tiles - 1).empty());
    if (!stage_is_free) acquire_dq_stage();
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
  DEV void store_tile() {
    const KeyTile x = tile();
    const i32 key = x.key + static_cast<i32>(first_key());
    const bool dv_finite = store_dv(dv, x, key), dk_finite = store_dk(dk, x, key);
    if constexpr (config.careful) {
      if constexpr (backward_features.dv) dv_marks().template put<features.dim_v>(p.dv, p.dv_stride, x, key);
      if constexpr (backward_features.dk && kMarksDk)
        dk_marks().template put<features.dim_qk>(p.dk, p.dk_stride, x, key);
      mark_overflow(x, key, overflowed);
    } else {
      mark(x, key, dv_finite && dk_finite);
    }
  }
};

}  // namespace onepass::sm90
