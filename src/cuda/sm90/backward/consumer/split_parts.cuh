// A consumer warpgroup of split.cuh: what it holds, and the steps of its loop.
#pragma once
#include "cuda/mma/mma.cuh"

#include "cuda/sm90/backward/consumer/exchange.cuh"
#include "cuda/sm90/backward/consumer/order.cuh"
#include "cuda/sm90/backward/consumer/pair.cuh"
#include "cuda/sm90/backward/consumer/warp.cuh"
#include "cuda/sm90/backward/sums.cuh"

namespace onepass::sm90 {

constexpr u32 kRowStages = kLayout.q.stages;
constexpr bool kAhead = config.ahead;
constexpr u32 kHeld = config.held;

template <u32 group>
struct SplitConsumer : BackwardWarp {
  static constexpr bool kIsScores = group == 0;
  static constexpr u32 kN = kIsScores ? kVN : kQkN;  // columns of dV, of dK
  ScoreFragment first;
  Fragment<float, kDqN<group> / 2> dq;
  Fragment<float, kN / 2> second;
  Statistics rows;
  ScoreWords operand;
  Slopes<kScores> slopes;
  DropoutMask<kScores> dropout_mask;
  u32 seen;  // the mask's bits of its scores
  static constexpr u32 kSteps = (kIsScores ? kQkN : kVN) / kDepth;
  u32 held[kHeld == 0 ? 1 : 4 * (kHeld < kSteps ? kHeld : kSteps)];  // of its keys of K, of V
  bool overflowed = false;                                           // some of the tile's dS, if careful
  i32 accumulate = 0;                                                // whether `second` holds anything yet
  i32 place_before = 0, place = 0;  // in dQ's sums: of the block before; of this one, once the next is at work

  DEV SplitConsumer(const SharedMemory& shared, const BackwardParams& params) : BackwardWarp(shared, params) {
    if constexpr (config.careful) marks().start();
  }
  DEV Marks<kN / 2> marks() const { return {p, memory, 0}; }  // of `second`

  DEV u32 first_key() const { return warp * 16; }  // of this warp, within the tile
  DEV bool next_tile() {
    accumulate = 0;
    if (!open_tile(first_key(), group)) return false;
    if constexpr (config.careful) look_through_keys(p, memory.base + kLayout.k.data);
    if constexpr (!kIsScores) memory.v().at(tiles).wait();
    if constexpr (kHeld != 0) {
#pragma unroll
      for (u32 kk = 0; kk < sizeof held / 16; ++kk)
        ldmatrix4(held + 4 * kk, swizzled(memory.base + (kIsScores ? kLayout.k.data : kLayout.v.data) +
                                              kk / kStepsOfBlock * kBlockN * kBlockColumnBytes,
                                          warp * 16 + lane % 16, kk % kStepsOfBlock * 2 + lane / 16));
    }
    return true;
  }
  // Stages of a row block; the same in every lane, provably.
  static DEV u32 row_slot(u32 i) {
    const u32 slot = i % kRowStages;
    return kRowStages == 2 ? warp_any(slot) : warp_any(slot & 1) | warp_any(slot & 2) << 1;
  }
  DEV u32 q_of(u32 i) const { return memory.base + kLayout.q.data + row_slot(i) * kLayout.q.bytes; }
  DEV u32 dout_of(u32 i) const { return memory.base + kLayout.dout.data + row_slot(i) * kLayout.dout.bytes; }
  DEV Exchange exchange() const { return {memory.exchange(warp).stage(), lane}; }

  DEV void issue_first() {
    if constexpr (kIsScores) seen = scores.seen_scores(at.row());
    if constexpr (kIsScores)
      memory.q().at(block).wait();
    else
      memory.dout().at(block).wait();
    load_statistics();
    wgmma_fence();
    if constexpr (kIsScores)
      issue_keys_by_rows<kQkN>(first, held, memory.base + kLayout.k.data, q_of(block));
    else
      issue_keys_by_rows<kVN>(first, held, memory.base + kLayout.v.data, dout_of(block));
  }
  DEV void load_statistics() {
    const u32 slot = block % kRowStages, statistics = kIsScores ? memory.lse(slot) : memory.delta(slot);
#pragma unroll
    for (int c = 0; c < static_cast<int>(kBlockM / 16); ++c) load_part(rows, statistics, c);
  }
  // S becomes P, handed over; dP becomes dS.
  DEV void first_ready() {
    fence_operand(first);
    if constexpr (kIsScores) {
      arrive(memory.q().at(block).empty());
      probabilities();
    } else {
      if constexpr (!backward_features.dentropy) arrive(memory.dout().at(block).empty());
      differentiate();
      if constexpr (backward_features.dentropy) arrive(memory.dout().at(block).empty());
    }
  }
  DEV void probabilities() {
    bool some_hidden = false;
    if constexpr (kPlainScores) {
      dropout_mask = scores.template dropout_mask<kScores>(at.row());
      scores.plain_weights(first, rows, at.row(), seen, [](int) {});
    } else {
      dropout_mask = scores.template dropout_mask<kScores>(at.row());
      some_hidden = scores.template probabilities<config.careful>(first, slopes, rows, at.row());
    }
    const auto mailbox = memory.exchange(warp).at(block);
    mailbox.acquire();  // a branch: it keeps the exponentials above the wait
    if constexpr (kAhead) dq_came();
    const Exchange to = exchange();
    u32 n = 0;
    to.put(n, [&](u32 j) { return Weight::pack(first[j] * kWeightScale, first[j + 1] * kWeightScale); });
    if constexpr (features.softcap)
      to.put(n += kScores / 8, [&](u32 j) { return Element::pack(slopes.product[j], slopes.product[j + 1]); });
    if constexpr (features.score_mod)
      to.put(n += kScores / 8, [&](u32 j) { return Element::pack(slopes.bias[j], slopes.bias[j + 1]); });
    if constexpr (features.dropout) store_four(to.place(n + kScores / 8), dropout_mask.word[0], some_hidden, 0, 0);
    __syncwarp();
    arrive(mailbox.full());
    if constexpr (!kAhead) pack_kept(first, dropout_mask, operand);
  }
  DEV void differentiate() {
    const auto mailbox = memory.exchange(warp).at(block);
    mailbox.wait();
    const Exchange from = exchange();
    ScoreFragment w;
    u32 n = 0;
    from.take<Weight>(n, [&](u32 j, float x) { w[j] = x * (1.0f / kWeightScale); });
    if constexpr (features.softcap)
      from.take<Element>(n += kScores / 8, [&](u32 j, float x) { slopes.product[j] = x; });
    if constexpr (features.score_mod) from.take<Element>(n += kScores / 8, [&](u32 j, float x) { slopes.bias[j] = x; });
    if constexpr (features.dropout) {
      u32 unused[3];
      load_four(from.place(n + kScores / 8), dropout_mask.word[0], unused[0], unused[1], unused[2]);
    }
    __syncwarp();
    arrive(mailbox.empty());
    const EntropyGradients of_entropies = entropies(memory.delta(block % kRowStages));
    if constexpr (kPlainScores)
      scores.plain_gradients(w, first, dropout_mask, rows, of_entropies, config.careful);
    else
      scores.template differentiate<config.careful>(w, first, slopes, dropout_mask, rows, of_entropies, true, at.row(),
                                                    [&](i32 row, i32 key, float g) { scores.add(row, key, g); });
    if constexpr (config.careful) overflowed = overflowed || overflows(first);
    if constexpr (kAhead) {
      ScoreWords ds;
      pack_fragment(first, ds);
      dq_came();
      memory.ds().at(block).acquire();
      store_ds(ds, own_ds());
    } else {
      pack_fragment(first, operand);
      memory.ds().at(block).acquire();
      store_ds(operand, own_ds());
    }
  }

  // The fence is the reader's, where nothing is under way: behind issued products it would wait for them.
  DEV void wait_operands() const {
    if constexpr (kIsScores) memory.dout().at(block).wait();
    if (accumulate) wait_ds(block - 1);
    async_proxy_fence();
  }
  // Q and dO as second operands. The weights that were handed over lie where the bits come.
  DEV void separate() {
    if constexpr (!config.careful) return;
    const auto separate_and = [&](bool some_hidden, const auto& mark) {
      separate_rows(some_hidden, q_of(block), dout_of(block), memory.row_bits(), mark);
    };
    if constexpr (kIsScores) {
      separate_and(has_hidden(operand), [&] {
        const SeenRows seen_rows([&](u32 i) { return operand[i]; });
        seen_rows.mark(marks(), memory.row_bits());
      });
    } else if constexpr (kMarksDk) {
      const Exchange from = exchange();
      const SeenRows seen_rows([&](u32 i) { return static_cast<u32>(load_word(from.place(i / 4) + i % 4 * 4)); });
      separate_and(false,
                   [&] { seen_rows.mark(marks(), memory.row_bits() + bits_bytes(features.dim_v, config.block_q)); });
    } else {
      separate_and(false, [] {});
    }
  }
  DEV void wait_ds(u32 i) const {
    memory.ds().at(i).wait();
    if constexpr (kPaired) memory.partner().at(i).wait();
  }
  // Its stage is free when both CTAs have read it.
  DEV void release_ds(u32 i) const {
    arrive(memory.ds().at(i).empty());
    if constexpr (kPaired) arrive_there(memory.ds().at(i).empty(), lane == 0);
  }
  DEV void issue_dq_of(u32 i) {
    const u32 ds = ds_stage(warp_any(i & 1)), keys = memory.base + kLayout.k.data;
    if constexpr (kPaired) {
      const PairedKeys of{group, warp_any(pair_rank())};
      add_dq_product(dq, ds + of.ds(false), keys + of.own(), false);
      add_dq_product(dq, ds + of.ds(true), keys + of.partner(), true);
    } else {
      add_dq_product(dq, ds, keys + column_offset(group * kDqN<0>), false);
    }
    wgmma_commit();
  }
  DEV void issue_dq_before(u32 i) {
    fence_operand(operand);
    fence_operand(second);
    wgmma_fence();
    issue_dq_of(i - 1);
  }
  DEV void issue_second(u32 i) { issue_keys_by_columns(second, operand, kIsScores ? dout_of(i) : q_of(i), accumulate); }
  // Waits for the product dQ of an earlier block, and releases its dS.
  DEV void dq_came() {
    wgmma_wait<1>();
    fence_operand(dq);
    if (accumulate) release_ds(block - 2);
  }
  DEV void keep_place() { place = static_cast<i32>(at.place(p, static_cast<i32>(scores.batch))); }
  // kAhead: adds dQ of block i, whose product has come.
  DEV void add_dq_before(u32 i) {
    if (accumulate) add_dq(i);
    accumulate = 1;
    place_before = place;
  }
  // Packed again, with nothing under way: registers of a product may not be written while another is.
  DEV void take_operand() {
    fence_operand(first);
    if constexpr (kIsScores)
      pack_kept(first, dropout_mask, operand);
    else
      pack_fragment(first, operand);
  }
  // dQ of the block before is there.
  DEV void dq_ready() {
    fence_operand(dq);
    if (accumulate) {
      release_ds(block - 1);
      add_dq(block - 1);
    }
    accumulate = 1;
    keep_place();
    place_before = place;
  }
  DEV void add_dq(u32 i) const {                  // of block i, whose place is the one before
    if constexpr (!backward_features.dq) return;  // there are no sums
    if constexpr (kPaired) return stage_dq(i);
    if constexpr (kDeterministic) memory.order().at(i).wait();
    constexpr i32 kColumn = group * kDqN<0> / 8, kFirst = sum_tile(0, kColumn),
                  kOfWarp = sum_tile(16, kColumn) - kFirst;
    float* const to = dq_sums_of(p, place_before) + kFirst + warp * kOfWarp + lane * 4;
#pragma unroll
    for (u32 u = 0; u < kDqN<group> / 8; ++u)
      add_global(to + u * 128, dq[4 * u], dq[4 * u + 1], dq[4 * u + 2], dq[4 * u + 3]);
    if constexpr (kDeterministic) {
      __syncwarp();
      arrive(memory.order().at(i).empty());
    }
  }
  // For add_paired_dq.
  DEV void stage_dq(u32 i) const {
    const auto stage = memory.dq(group).at(i);
    stage.acquire();
    const u32 to = stage.stage() + warp * (kDqN<group> * 64) + lane * 16;
#pragma unroll
    for (u32 u = 0; u < kDqN<group> / 8; ++u)
      store_four(to + u * 512, __float_as_uint(dq[4 * u]), __float_as_uint(dq[4 * u + 1]),
                 __float_as_uint(dq[4 * u + 2]), __float_as_uint(dq[4 * u + 3]));
    __syncwarp();
    arrive(stage.full());
  }
  DEV void second_ready() {
    fence_operand(second);
    fence_operand(operand);
    arrive(kIsScores ? memory.dout().at(block - 1).empty() : memory.q().at(block - 1).empty());
  }
  // The tile's last block's own dQ; then its keys are free.
  DEV void last_dq() {
    wait_ds(block - 1);
    async_proxy_fence();
    wgmma_fence();
    issue_dq_of(block - 1);
    wgmma_wait<0>();
    fence_operand(dq);
    release_ds(block - 1);
    add_dq(block - 1);
  }
  // The next tile's loads begin before this one's gradients leave.
  DEV void store_tile() {
    const KeyTile x = tile();
    __syncwarp();
    if constexpr (!kIsScores) arrive(memory.v().at(tiles).empty());
    arrive(memory.k().at(tiles).empty());
    tiles = warp_any(tiles == 0);  // the parity, uniform: K and V have one stage
    const i32 key = x.key + static_cast<i32>(first_key());
    bool finite;
    if constexpr (kIsScores)
      finite = store_dv(second, x, key);
    else
      finite = store_dk(second, x, key);
    if constexpr (!config.careful) {
      mark(x, key, finite);
    } else if constexpr (kIsScores) {
      if constexpr (backward_features.dv) marks().template put<features.dim_v>(p.dv, p.dv_stride, x, key);
    } else {
      if constexpr (backward_features.dk && kMarksDk) marks().template put<features.dim_qk>(p.dk, p.dk_stride, x, key);
      mark_overflow(x, key, overflowed);
    }
  }
};

}  // namespace onepass::sm90
