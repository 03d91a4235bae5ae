// Prompts with one result per row on Hopper: two warpgroups of 64 rows, and four warps that copy K, V and Q for them.
//
// wgmma sums as mma.sync does: the products of sixteen elements after each other, from the first on. So a row's bits
// are those of turns.cuh and of the kernels for few rows. A warpgroup's work on a tile of 64 keys:
//
//   S = Q K^T      Q in registers; behind P V of the tile before, which ends meanwhile
//   P = 2^(S - m)  lazily, kSubN keys after the others; the registers of S become those of P
//   a vote         if some row needs an exact step: S again, then step by step
//   O += P V       under way when the next tile begins
//
// One warpgroup's softmax runs under the other's products.
#pragma once
#include "cuda/decode/prompts/sums.cuh"
#include "cuda/device/pipeline.cuh"
#include "cuda/device/wgmma.cuh"

namespace onepass::decode {

constexpr i32 kGroupRows = 64, kGroupThreads = 128, kBlockBytes = 128;  // of a row of 64 columns
// Steps of S whose Q is in registers; the others read it from shared memory.
constexpr i32 kQuerySteps = kQkDepth / 16, kHeldSteps = kOutN <= 64                         ? kQuerySteps
                                                        : needs_registers(forward_features) ? 0
                                                        : kQuerySteps < 2                   ? kQuerySteps
                                                                                            : 2;
constexpr u32 kCopierRegisters = 56, kConsumerRegisters = 224;
static_assert(!kWgmma || (kThreads == 2 * kGroupThreads && kRowTiles == 1 && kSlots % 2 == 0));

// Barriers of Q, and of the pairs of K and V in their order.
struct QueryBarriers {
  u32 sm, parity = 0;
  DEV u32 full() const { return sm + kLayout.barriers + 16 * kSlots; }
  DEV u32 empty() const { return full() + kBarrierBytes; }
  DEV void init() const { mbar_init(full(), kCopiers), mbar_init(empty(), kWarps * kWarpArrivals); }
  DEV void wait() const {
    mbar_wait(full(), parity);
    async_proxy_fence();
  }
  DEV void release() {
    __syncwarp();
    warp_arrive(empty(), opaque_thread() % 32 == 0);
    parity ^= 1;
  }
};
enum KeyOrValue : u32 { kKey, kValue };
struct Pairs {
  u32 sm;
  PipelineState<kSlots / 2> state{};

  DEV u32 slot(KeyOrValue what) const { return 2 * state.slot + what; }
  DEV u32 tile(KeyOrValue what) const { return sm + kLayout.rings + slot(what) * kLayout.slot_bytes; }
  DEV u32 full(KeyOrValue what) const { return sm + kLayout.barriers + 16 * slot(what); }
  DEV u32 empty(KeyOrValue what) const { return full(what) + kBarrierBytes; }
  DEV void init() const {
    for (u32 i = 0; i < kSlots; ++i) {
      const u32 bar = sm + kLayout.barriers + 16 * i;
      mbar_init(bar, kCopiers), mbar_init(bar + kBarrierBytes, kWarps * kWarpArrivals);
    }
  }
  DEV void wait(KeyOrValue what) const {
    mbar_wait(full(what), state.parity);
    async_proxy_fence();
  }
  static DEV void release(u32 empty) { warp_arrive(empty, opaque_thread() % 32 == 0); }
};

// A template, as Turns is.
template <i32 turns>
struct GroupTurns : TurnSums {
  using Scores = Wgmma<turns == 0 ? 0 : kBlockN>;
  using Output = Wgmma<turns == 0 ? 0 : kOutN>;
  using Query = u32[kHeldSteps == 0 ? 4 : 4 * kHeldSteps];
  Pairs pairs{sm};

  static DEV i32 group() { return own_warp() / (kGroupThreads / 32); }

  // A piece: its turns, joined.
  DEV void attend(const Segment& segment, PieceSums& whole) {
    const Group& g = segment.group;
    begin_piece(whole);
    if (segment.tile() >= segment.end_tile()) return;
    LanePlaces places;
    places.open(p, g, first_own_row());
    const Band32 band = band_of(p, g.seq_q, g.seq_k);
    const i32 first_row = group() * kGroupRows;
    const i32 seen_from = band.keys_of(PackedRow::of(p, g, first_row).token).lo,
              seen_to = band.keys_of(PackedRow::of(p, g, first_row + kGroupRows - 1).token).hi;
    Query query;
    load_query(query);
#pragma unroll 1
    for (i32 turn = 0; turn < turns; ++turn) {
      float o[kOutSums];
      Weights<kBlockN> w = {};
      LaneRows rows = {};
      fill(o, 0.0f);
      bool fresh = true;
      u32 given = 0;  // the barrier of V under way; 0: none is
#pragma unroll 1
      for (i32 tile = segment.tile() + turn; tile < segment.end_tile(); tile += turns, pairs.state.advance()) {
        const i32 first = tile * kBlockN;
        pairs.wait(kKey);
        if (first >= seen_to || first + kBlockN <= seen_from) {  // no row of the warpgroup sees them
          pairs.wait(kValue);
          __syncwarp();
          pairs.release(pairs.empty(kKey)), pairs.release(pairs.empty(kValue));
          continue;
        }
        take_keys(query, w, o, rows, LaneScores{p, g, places}, first, fresh, given);
        fresh = false, given = pairs.empty(kValue);
      }
      end_values(w, o, given);
      join_turn(rows, o, whole);
    }
  }

 private:
  DEV void load_query(Query& query) const {
    const u32 lane = opaque_thread() % 32, row = first_own_row() + lane % 16;
#pragma unroll
    for (i32 k = 0; k < kHeldSteps; ++k)
      ldmatrix4(query + 4 * k, sm + kLayout.q + chunk_at<kBlockM>(row, 2 * k + lane / 16, kLayout.q_pitch));
  }
  DEV void issue_scores(float (&s)[kBlockN / 2], const Query& query) const {
    const u32 q = sm + kLayout.q + group() * (kGroupRows * kBlockBytes);
    wgmma_fence();
#pragma unroll
    for (i32 k = 0; k < kQuerySteps; ++k) {
      const u64 keys = smem_descriptor(pairs.tile(kKey), 16, k / 4 * (kBlockN * kBlockBytes) + k % 4 * 32);
      if (k < kHeldSteps)
        Scores::registers_kmajor(s, query + 4 * k, keys, k != 0);
      else
        Scores::shared(s, smem_descriptor(q, 16, k / 4 * (kBlockM * kBlockBytes) + k % 4 * 32), keys, k != 0);
    }
    wgmma_commit();
  }
  // O += P V of `keys` keys from `from` on.
  template <i32 keys>
  DEV void issue_values(float (&o)[kOutSums], Weights<kBlockN>& w, i32 from) const {
    fence_operand(w);
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (i32 k = from / 16; k < (from + keys) / 16; ++k)
      Output::registers_mnmajor(o, w + 4 * k,
                                smem_descriptor(pairs.tile(kValue), kBlockN * kBlockBytes, k * 16 * kBlockBytes), 1);
    wgmma_commit();
  }
  // All products are over.
  static DEV void end_values(Weights<kBlockN>& w, float (&o)[kOutSums], u32 given) {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(w);
    if (given != 0) Pairs::release(given);
  }

  DEV void take_keys(const Query& query, Weights<kBlockN>& w, float (&o)[kOutSums], LaneRows& rows,
                     const LaneScores& scores, i32 first, bool fresh, u32 given) const {
    float s[kBlockN / 2];
    issue_scores(s, query);
    end_values(w, o, given);
    fence_operand(s);
    scores.apply(s, first);
    const auto unit = softmax_unit(p);
    const auto step = [&](i32 i, auto& sums, bool exact) {
      softmax_by_row<Product, kRoundedSums>(part_of<kSubN / 2>(s, i), part_of<kSubWords>(w, i), sums, rows, unit,
                                            scores.drop(first + i * kSubN), exact);
    };
    const auto all = [](bool x) { return !bar_any(kWarpgroup + group(), kGroupThreads, !x); };
    bool lazy;
    if (fresh) {
      float none[1] = {};  // O is 0 so far
      step(0, none, true);
      lazy = take_lazy_steps<true>(s, w, rows, unit, scores, first, all);
    } else {
      lazy = take_lazy_steps<false>(s, w, rows, unit, scores, first, all);
    }
    if (lazy) {
      Pairs::release(pairs.empty(kKey));
      pairs.wait(kValue);
      issue_values<kBlockN>(o, w, 0);
      return;
    }
    issue_scores(s, query);
    wgmma_wait<0>();
    fence_operand(s);
    __syncwarp();
    Pairs::release(pairs.empty(kKey));
    scores.apply(s, first);
    pairs.wait(kValue);
#pragma unroll
    for (i32 i = 0; i < kSubs; ++i) {
      if (i != 0 || !fresh) step(i, o, false);
      issue_values<kSubN>(o, w, i * kSubN);
      wgmma_wait<0>();
      fence_operand(o);
      fence_operand(w);
    }
  }
};

// Those that hold rows: all of a CTA's segments.
template <i32 turns>
DEV void consume(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end) {
  GroupTurns<turns> rows{{sm, p}};
  const auto stored = [&] { return sm + kLayout.segments + kStoredBytes * own_warp(); };
  const auto stored_end = [&] { return stored() + 60; };
  const auto stored_query = [&] { return stored() + 64; };
  store_word(stored_end(), end);
  store_word(stored_query(), 0);
#pragma unroll 1
  while (segment.steps != 0) {
    PieceSums whole;
    if (opaque_thread() % 32 == 0) segment.store(stored());
    __syncwarp();
    if (segment.tile() < segment.end_tile()) QueryBarriers{sm, static_cast<u32>(load_word(stored_query()))}.wait();
    rows.attend(segment, whole);
    segment = Segment::load(stored());
    const Group& g = segment.group;
    const bool over = segment.step + segment.steps == g.end();
    if (over && segment.tile() < segment.end_tile()) {
      QueryBarriers query{sm, static_cast<u32>(load_word(stored_query()))};
      query.release();
      store_word(stored_query(), static_cast<i32>(query.parity));
    }
    float o[kOutSums];
    rows.take_piece(whole, o);
    rows.join_piece(segment, o, over);
    if (over) {
      all_sync();  // the flags of the group before have been read
      clear_flags(sm);
      all_sync();
      rows.put(g, o);
      all_sync();
      run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
    }
    segment = Segment::load(stored());
    __syncwarp();
    segment = line.next(segment, load_word(stored_end()));
  }
}

// Those that copy. A group's Q comes behind its first K.
DEV void produce(u32 sm, const DecodeParams& p, const Line& line, const Segment& segment, i32 end) {
  Ring ring{p, line, end};
  ring.begin_alone(sm, segment);
  const auto full = [&] { return sm + kLayout.barriers + 16 * static_cast<u32>(ring.slot); };
  constexpr u32 kPairParity = 1, kQueryParity = 2;
  u32 parities = kPairParity | kQueryParity;
#pragma unroll 1
  while (ring.ahead.steps != 0) {
    mbar_wait(full() + kBarrierBytes, parities & kPairParity);
    ring.copy_next<false>();
    copies_arrive(full() - 16);
    if (ring.tile == ring.ahead.group.first_tile) {  // of its group
      QueryBarriers query{sm};
      mbar_wait(query.empty(), parities / kQueryParity);
      copy_query<false>(sm, p, ring.ahead.group);
      copies_arrive(query.full());
      parities ^= kQueryParity;
    }
    mbar_wait(full() + kBarrierBytes, parities & kPairParity);
    ring.copy_next<true>();
    if (ring.slot == 0) parities ^= kPairParity;
    copies_arrive(ring.slot == 0 ? sm + kLayout.barriers + 16 * (kSlots - 1) : full() - 16);
  }
}

template <i32 turns>
DEV void take_group_turns(u32 sm, const DecodeParams& p, const Line& line, const Segment& segment, i32 end) {
  if constexpr (turns > 1) {
    if (threadIdx.x == 0) {
      if (sm & 1023) __trap();  // the swizzle pattern is a function of the address
      Pairs{sm}.init();
      QueryBarriers{sm}.init();
      mbar_init_fence();
    }
    __syncthreads();
    // Each role in one branch of one if/else, or setmaxnreg is ignored.
    if (warp_uniform(threadIdx.x / kGroupThreads) == kThreads / kGroupThreads) {
      registers_down<kCopierRegisters>();
      produce(sm, p, line, segment, end);
    } else {
      registers_up<kConsumerRegisters>();
      consume<turns>(sm, p, line, segment, end);
    }
  }
}

}  // namespace onepass::decode
