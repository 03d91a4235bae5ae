// A consumer warpgroup of backward_split.cuh: what it holds, and the steps of its loop.
#pragma once
#include "cuda/sm90/backward_turn.cuh"
#include "cuda/sm90/backward_warp.cuh"

namespace onepass::sm90 {

// What a lane of the scores' warpgroup hands to the same lane of the other, 16 bytes at a time: pairs of 16-bit
// numbers.
struct Exchange {
  u32 at;  // of the warp's part
  u32 lane;
  DEV u32 place(u32 i) const { return at + (i * 32 + lane) * 16; }
  template <class Get>
  DEV void put(u32 first, const Get& get) const {
#pragma unroll
    for (u32 i = 0; i < kScores / 8; ++i)
      store_four(place(first + i), get(8 * i), get(8 * i + 2), get(8 * i + 4), get(8 * i + 6));
  }
  template <class Set>
  DEV void take(u32 first, const Set& set) const {
#pragma unroll
    for (u32 i = 0; i < kScores / 8; ++i) {
      u32 x[4];
      load_four(place(first + i), x[0], x[1], x[2], x[3]);
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        set(8 * i + 2 * e, Element::unpack(static_cast<u16>(x[e])));
        set(8 * i + 2 * e + 1, Element::unpack(static_cast<u16>(x[e] >> 16)));
      }
    }
  }
};

template <u32 group>
struct SplitConsumer : BackwardWarp {
  static constexpr bool kIsScores = group == 0;
  static constexpr u32 kN = kIsScores ? kVN : kQkN;  // columns of dV, of dK
  float first[kScores], dq[kDqN<group> / 2], second[kN / 2];
  float rows[kScores / 2];  // LSE or D of this lane's rows
  u32 operand[kScores / 2];
  Slopes<kScores> slopes;
  Kept<kScores> kept;
  u32 seen;              // the mask's bits of its scores
  i32 accumulate = 0;    // whether `second` holds anything yet
  i32 place_before = 0;  // of the block before in dQ's sums
  u32 turn_before = 0;   // counts that come before its turn

  DEV SplitConsumer(const SharedMemory& shared, const BackwardParams& params) : BackwardWarp(shared, params) {}

  DEV u32 first_key() const { return warp * 16; }  // of this warp, within the tile
  DEV bool next_tile() {
    accumulate = 0;
    if (!open_tile(first_key(), group)) return false;
    if constexpr (!kIsScores) memory.v().at(tiles).wait();
    return true;
  }
  DEV Exchange exchange() const { return {memory.exchange(warp).stage(), lane}; }

  DEV void issue_first() {
    odd_block = voted(block & 1);
    const u32 statistics = kIsScores ? memory.lse(block % 2) : memory.delta(block % 2);
    if constexpr (kIsScores) seen = scores.seen_scores(at.row());
    if constexpr (kIsScores)
      memory.q().at(block).wait();
    else
      memory.dout().at(block).wait();
#pragma unroll
    for (int c = 0; c < static_cast<int>(kBlockM / 16); ++c) load_part(rows, statistics, c);
    wgmma_fence();
    if constexpr (kIsScores)
      issue_keys_by_rows<kQkN>(first, memory.base + kLayout.k.data, q_stage());
    else
      issue_keys_by_rows<kVN>(first, memory.base + kLayout.v.data, dout_stage());
  }
  // S becomes P, handed over; dP becomes dS.
  DEV void first_ready() {
    fence_operand(first);
    if constexpr (kIsScores) {
      arrive(memory.q().at(block).empty());
      weigh();
    } else {
      arrive(memory.dout().at(block).empty());
      differentiate();
    }
  }
  DEV void weigh() {
    bool some_hidden = false;
    if constexpr (kPlainScores) {
      kept = scores.template kept<kScores>(at.row());
      scores.plain_weights(first, rows, at.row(), seen, [](int) {});
    } else {
      kept = scores.template kept<kScores>(at.row());
      some_hidden = scores.weigh(first, slopes, rows, at.row());
    }
    const auto mailbox = memory.exchange(warp).at(block);
    mailbox.acquire();
    const Exchange to = exchange();
    u32 n = 0;
    to.put(n, [&](u32 j) { return Element::pack(first[j], first[j + 1]); });
    if constexpr (features.softcap)
      to.put(n += kScores / 8, [&](u32 j) { return Element::pack(slopes.product[j], slopes.product[j + 1]); });
    if constexpr (features.score_mod)
      to.put(n += kScores / 8, [&](u32 j) { return Element::pack(slopes.bias[j], slopes.bias[j + 1]); });
    if constexpr (features.dropout) store_four(to.place(n + kScores / 8), kept.word[0], some_hidden, 0, 0);
    __syncwarp();
    arrive(mailbox.full());
    pack_kept(first, kept, operand);
  }
  DEV void differentiate() {
    const auto mailbox = memory.exchange(warp).at(block);
    mailbox.wait();
    const Exchange from = exchange();
    float w[kScores];
    u32 n = 0;
    from.take(n, [&](u32 j, float x) { w[j] = x; });
    if constexpr (features.softcap) from.take(n += kScores / 8, [&](u32 j, float x) { slopes.product[j] = x; });
    if constexpr (features.score_mod) from.take(n += kScores / 8, [&](u32 j, float x) { slopes.bias[j] = x; });
    if constexpr (features.dropout) {
      u32 unused[3];
      load_four(from.place(n + kScores / 8), kept.word[0], unused[0], unused[1], unused[2]);
    }
    __syncwarp();
    arrive(mailbox.empty());
    if constexpr (kPlainScores)
      scores.plain_gradients(w, first, kept, rows, false);
    else
      scores.differentiate(w, first, slopes, kept, rows, true, at.row(),
                           [&](i32 row, i32 key, float g) { scores.add(row, key, g); });
    pack_fragment(first, operand);
    memory.ds().at(block).acquire();
    store_ds(operand, 0);
  }

  // The fence is the reader's, where nothing is under way: behind issued products it would wait for them.
  DEV void wait_operands() const {
    if constexpr (kIsScores) memory.dout().at(block).wait();
    if (accumulate) memory.ds().at(block - 1).wait();
    async_proxy_fence();
  }
  DEV void issue_dq_of(u32 odd) { issue_dq(dq, ds_stage(odd), memory.base + kLayout.k.data, group * kDqN<0>); }
  DEV void issue_dq_before() {
    fence_operand(operand);
    fence_operand(second);
    wgmma_fence();
    issue_dq_of(odd_block ^ 1);
  }
  DEV void issue_second() {
    if constexpr (kIsScores) {
      issue_keys_by_columns(second, operand, dout_stage(), accumulate);
    } else {
      issue_keys_by_columns(second, operand, q_stage(), accumulate);
    }
  }
  // dQ of the block before is there.
  DEV void dq_ready() {
    fence_operand(dq);
    if (accumulate) {
      arrive(memory.ds().at(block - 1).empty());
      add_dq();
    }
    accumulate = 1;
    place_before = static_cast<i32>(at.place(p, static_cast<i32>(scores.batch)));
    if constexpr (kDeterministic) turn_before = tiles_before(scores.band, scores.first_key, at) * kConsumerWarps;
  }
  DEV void add_dq() const {
    if constexpr (!backward_features.dq) return;  // there are no sums
    if constexpr (kDeterministic) wait_for_count(p.turns + place_before, turn_before);
    constexpr u32 kGroupFloats = 64 * kDqN<0>, kWarpFloats = 16 * kDqN<group>;
    float* const to = dq_sums_of(p, place_before) + group * kGroupFloats + warp * kWarpFloats + lane * 4;
#pragma unroll
    for (u32 u = 0; u < kDqN<group> / 8; ++u)
      add_global(to + u * 128, dq[4 * u], dq[4 * u + 1], dq[4 * u + 2], dq[4 * u + 3]);
    if constexpr (kDeterministic) {
      __syncwarp();
      if (lane == 0) add_release(p.turns + place_before, 1);
    }
  }
  DEV void second_ready() {
    fence_operand(second);
    fence_operand(operand);
    arrive(kIsScores ? memory.dout().at(block - 1).empty() : memory.q().at(block - 1).empty());
  }
  // The tile's last block's own dQ; then its keys are free.
  DEV void last_dq() {
    memory.ds().at(block - 1).wait();
    async_proxy_fence();
    wgmma_fence();
    issue_dq_of(odd_block);
    wgmma_wait<0>();
    fence_operand(dq);
    arrive(memory.ds().at(block - 1).empty());
    add_dq();
  }
  // The next tile's loads begin before this one's gradients leave.
  DEV void store_tile() {
    const KeyTile x = tile();
    __syncwarp();
    if constexpr (!kIsScores) arrive(memory.v().at(tiles).empty());
    arrive(memory.k().at(tiles).empty());
    ++tiles;
    const i32 key = x.key + static_cast<i32>(first_key());
    bool finite;
    if constexpr (kIsScores)
      finite = store_dv(second, x, key);
    else
      finite = store_dk(second, x, key);
    remember(x, key, finite, group);
  }
};

}  // namespace onepass::sm90
