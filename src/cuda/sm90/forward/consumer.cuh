// The state of a consumer warpgroup, and the steps of its loop (forward.cuh).
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/mma/fragment.cuh"
#include "cuda/sm90/forward/bias_tile.cuh"
#include "cuda/sm90/forward/epilogue.cuh"
#include "cuda/sm90/forward/products.cuh"
#include "cuda/sm90/fp8/softmax.cuh"

namespace onepass::sm90 {

constexpr bool kPromotes = config.promote > 0, kBlockScales = config.block_scales;
// The largest scores are known ahead of the weights and tell whether these stay in range, so no vote on sums follows.
constexpr bool kMaximaDecide = forward_features.row_max && !forward_features.entropy && !kFactors && !kTransforms;
static_assert(!kFactors || !config.q_registers, "a tile's factors lie beside its Q");

struct Consumer {
  const SharedMemory& memory;
  const u32 group, lane, warp;  // group: which of the warpgroups; warp: among all of theirs
  const TensorMap* const out;
  const ForwardParams& p;
  Pipeline<kLayout.q> q = memory.q();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  Pipeline<kLayout.bias> bias = memory.bias(group);
  Scores scores{p};
  LaneRows rows;
  QueryOperand query;
  Fragment<float, kBlockN / 2> s;
  Fragment<float, kOutN / 2> o;
  Fragment<u32, kWeightWords> weights;
  i32 accumulate = 0;  // whether O holds anything yet
  FallbackRows fallback;
  // e4m3
  Fragment<float, kPromotes ? kOutN / 2 : 1> all = {};  // O of the blocks before those that o sums; 0 at a tile's begin
  i32 promoted_at = 0;                                  // blocks in o
  float score_factor = 1.0f, value_factor = 1.0f, block_factor = 1.0f, up = 0.0f;

  // Not an aggregate: that would set the fragments to 0.
  DEV Consumer(const SharedMemory& shared, u32 warpgroup, const TensorMap* output, const ForwardParams& params)
      : memory(shared),
        group(warpgroup),
        lane(threadIdx.x % 32),
        warp(warpgroup * kGroupWarps + threadIdx.x / 32 % kGroupWarps),
        out(output),
        p(params) {}

  DEV i32 first_row(const WorkTile& tile) const {  // of this warp
    const u32 of_rows = kVGroups == 1 ? warp : warp / (kGroupWarps * kVGroups) * kGroupWarps + warp % kGroupWarps;
    return tile.row + static_cast<i32>(of_rows * 16);
  }
  DEV u32 part() const { return kVGroups == 1 ? 0 : group % kVGroups; }  // of O's columns
  DEV u32 values() const { return v.stage() + part() * (kOutBlocks * kBlockN * kBlockColumnBytes); }

  DEV WorkTile take_tile() {
    q.wait();
    return load_tile(memory.tile(q.state.slot));
  }
  // Q in registers frees its shared memory at once; Q in shared memory is free after the tile's last S.
  DEV void take_query() {
    query.load(q.stage() + group / kVGroups * kGroupBlockBytes);
    if constexpr (config.q_registers) release_query();
  }
  DEV void done_with_query() {
    if constexpr (!config.q_registers) release_query();
  }
  DEV void release_query() {
    __syncwarp();
    q.release(lane == 0);
  }

  // Warpgroups take turns at issuing, so that one's softmax runs under the other's products.
  DEV void scheduler_barrier_init() const {
    if (config.ping_pong && group == kGroups - 1) bar_arrive(kSchedulerBarrier, 2 * kGroupThreads);
  }
  DEV void scheduler_barrier_sync() const {
    if constexpr (config.ping_pong) bar_sync(kSchedulerBarrier + group, 2 * kGroupThreads);
  }
  DEV void scheduler_barrier_arrive() const {
    if constexpr (config.ping_pong)
      bar_arrive(kSchedulerBarrier + (group + 1 == kGroups ? 0 : group + 1), 2 * kGroupThreads);
  }

  // S of K's stage alone; P V of V's stage alone; S ahead of P V, both under way when the next turn begins.
  DEV void issue_scores_alone() {
    take_scales();
    scheduler_barrier_sync();
    wgmma_fence();
    issue_scores(s, query, k.stage());
    scheduler_barrier_arrive();
  }
  DEV void issue_accumulate_alone() {
    fence_operand(weights);
    fence_operand(o);
    wgmma_fence();
    issue_accumulate(o, weights, values(), accumulate);
  }
  DEV void issue() {
    take_scales();
    scheduler_barrier_sync();
    fence_operand(weights);
    fence_operand(o);
    wgmma_fence();
    issue_scores(s, query, k.stage());
    if constexpr (kLateValues) {
      v.wait();
      wgmma_fence();
    }
    issue_accumulate(o, weights, values(), accumulate);
    accumulate = 1;
    scheduler_barrier_arrive();
  }
  // S is in its registers; `younger` products may still run.
  template <int younger>
  DEV void scores_ready() {
    wgmma_wait<younger>();
    fence_operand(s);
    if constexpr (kBlockScales) __syncwarp();  // every lane has its factors
    k.release(lane == 0);
  }
  DEV void output_ready() {
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(weights);
    v.release(lane == 0);
  }

  // Reads the scales of the block whose K has arrived.
  DEV void take_scales() {
    if constexpr (kBlockScales) {
      float of_block[2];
      load_pair(of_block, memory.scales(k.state.slot));
      block_factor = of_block[0], up = of_block[1];
    }
  }
  // Hopper's sums of e4m3 products are cut to 14 bits, towards 0: few blocks are summed at a time, and fp32 sums those.
  DEV void promote() {
    if constexpr (kPromotes) {
      if (++promoted_at < config.promote) return;
      add_promoted();
      accumulate = 0;
    }
  }
  DEV void add_promoted() {
    each(o, [&](int j, float x) { all[kPromotes ? j : 0] += x; });
    promoted_at = 0;
  }
  DEV auto unit() const {
    auto u = scores.unit();
    if constexpr (kFactors && !kTransforms) {
      const float factor = kBlockScales ? score_factor * block_factor : score_factor;
      u.factor *= factor, u.unit *= factor;
    }
    if constexpr (kMaximaDecide) u.unit = 1.0f;  // finalize() takes the largest scores to natural units
    return u;
  }

  // Everything between Q K^T and the softmax.
  DEV BeforeScores before(i32 n) const { return scores.before<kBlockN / 2>(n * kKeys); }
  DEV void apply(i32 n, const BeforeScores& known) {
    if constexpr (kFactors && kTransforms) multiply(s, score_factor * block_factor);
    if constexpr (kBiasTiles) {
      bias.wait();
      scores.apply(s, n * kKeys, known, BiasTile<features.bias>{bias.stage(), threadIdx.x / 32 % kGroupWarps * 16});
      __syncwarp();
      bias.release(lane == 0);
    } else {
      scores.apply(s, n * kKeys, known);
    }
  }
  // Takes in the largest scores, while P V may be under way. True if a lazy step is known to be right.
  DEV bool see() {
    if constexpr (kMaximaDecide) {
      const auto u = unit();
      return rows.see_bits_and_ask(s, [&](int i, float x) { return fits_lazily(rows.state[i], x, u); });
    } else if constexpr (kTransforms) {  // slopes and biases make the scores of many rows negative
      rows.see(s, unit().unit);
    } else {
      rows.see_bits(s, unit().unit);
    }
    return false;
  }
  DEV void ask_for_stages() {  // the answers are needed after the softmax
    k.test_wait();
    v.test_wait();
  }
  DEV void softmax(i32 n, [[maybe_unused]] bool fits) {
    if constexpr (!kMaximaDecide) ask_for_stages();  // ptxas moves the questions to the end, but not over a branch
    if constexpr (kFp8) {
      promote();
      softmax_next_e4m3<kPromotes>(s, weights, o, all, rows, unit(), Raise<kBlockScales>{up});
    } else if constexpr (kMaximaDecide) {
      if (fits)
        softmax_lazy<Element, kRoundedSums, true>(s, weights, rows, unit(), scores.drop(n * kKeys));
      else
        softmax_exact<Element, kRoundedSums>(s, weights, o, rows, unit(), scores.drop(n * kKeys));
      ask_for_stages();
    } else {
      softmax_next<Element, kRoundedSums>(s, weights, o, rows, unit(), scores.drop(n * kKeys));
    }
  }
  // The softmax of a tile's first block. put(j, w): where weights j .. j + 3 go.
  template <bool kInPlace = false, class Put>
  DEV void first_softmax(const WorkTile& tile, const Put& put) {
    scores.open(tile, first_row(tile));
    const i32 n = tile.n_hi - 1;
    if constexpr (kFactors) {
      score_factor = load_one(memory.factors(q.state.slot) + 4 * group);
      value_factor = load_one(memory.factors(q.state.slot) + 12);
    }
    if constexpr (kFp8) {
      apply(n, before(n));
      softmax_first_e4m3<kInPlace>(s, weights, rows, unit(), Raise<kBlockScales>{up});
    } else {
      apply(n, before(n));
      softmax_first<Element, kRoundedSums>(s, put, rows, unit(), scores.drop(n * kKeys),
                                           scores.columns<kBlockN / 2>(n * kKeys));
    }
  }
  DEV auto to_weights() {
    return [this](int j, const float(&four)[4]) { pack_four<Element, kBlockN / 2>(j, four, weights); };
  }
  DEV auto to_scores() {  // while the weights are an operand under way
    return [this](int j, const float(&four)[4]) {
      for (int i = 0; i < 4; ++i) s[j + i] = four[i];
    };
  }
  DEV void pack_scores() {
    if constexpr (kFp8) {
      pack_e4m3_operand(s, weights);
    } else {
#pragma unroll
      for (int j = 0; j < static_cast<int>(kBlockN / 2); j += 4) to_weights()(j, {s[j], s[j + 1], s[j + 2], s[j + 3]});
    }
  }

  // The sums of a tile need no O: they end under its last P V.
  DEV FinalRows finalize(const WorkTile& tile) const {
    LaneRows sums = rows;
    if constexpr (kMaximaDecide) sums.to_unit(unit_of(p).unit);
    if constexpr (kFp8) sums.state[0].l *= 1 / kHeadFactor, sums.state[1].l *= 1 / kHeadFactor;
    FinalRows final = finalize_rows(p, tile, sums);
    if constexpr (kFactors) {
      const float factor = kFp8 ? value_factor / kHeadFactor : value_factor;
      final.inv[0] *= factor, final.inv[1] *= factor;
    }
    if (part() == 0) {
      write_lses(p, tile, FragmentRows::from(first_row(tile)), final.lse);
      write_maxima(p, tile, FragmentRows::from(first_row(tile)), final);
      write_entropies(p, tile, FragmentRows::from(first_row(tile)), final);
    }
    return final;
  }
  DEV void store(const WorkTile& tile, const FinalRows& final) {
    if constexpr (kPromotes) {
      each(o, [&](int j, float& x) { x += all[j], all[j] = 0.0f; });
      promoted_at = 0;
    }
    store_output(memory, warp, out, p, tile, first_row(tile), o, final, fallback);
  }

  // A tile's first block, alone.
  DEV void first_block(const WorkTile& tile) {
    take_query();
    k.wait();
    issue_scores_alone();
    scores_ready<0>();
    first_softmax(tile, to_weights());
    accumulate = 0;
  }
  // A tile's last P V, alone.
  DEV void last_block(const WorkTile& tile) {
    v.wait();
    issue_accumulate_alone();
    const FinalRows final = finalize(tile);
    output_ready();
    store(tile, final);
  }
  DEV WorkTile plain_border(const WorkTile& tile) {
    last_block(tile);
    return take_tile();
  }
  // The next tile's first S ahead of this tile's last P V; under the two, this tile's sums, then the next one's first
  // softmax.
  DEV WorkTile overlapped_border(const WorkTile& tile) {
    const WorkTile next = take_tile();
    if (!next.exists()) {
      last_block(tile);
      return next;
    }
    take_query();
    k.wait();
    v.wait();
    issue();
    const FinalRows final = finalize(tile);
    scores_ready<1>();
    if constexpr (config.early_softmax) first_softmax<true>(next, to_scores());
    output_ready();
    store(tile, final);
    if constexpr (config.early_softmax)
      pack_scores();
    else
      first_softmax(next, to_weights());
    accumulate = 0;
    return next;
  }
};

}  // namespace onepass::sm90
