// Attention forward for Hopper: O = softmax(scores) V and its row log-sum-exp; 16-bit inputs, fp32 in between.
//
// A block of threads is one producer warpgroup (one warp of it issues TMA) and `groups` consumer warpgroups of 64 query
// rows. It is persistent: it draws (head, query tile) pairs from a counter, longest first. A consumer's work on a block
// of keys:
//
//   S = Q K^T           wgmma; Q from registers or shared memory, K from shared memory, fp32 S in registers
//   P = 2^(S - m)       lazy online softmax in registers; S's accumulator layout is the A-operand layout of P V
//   O += P V            wgmma; P from registers, V from shared memory read transposed (MN-major)
//
// Overlaps that keep the tensor cores fed: S of block n - 1 is issued ahead of P V of block n, so one turn carries two
// products; `flat`: the same across tiles; `ping_pong`: the warpgroups take turns at issuing.
// README.md has the schedule in steps, the budgets and what each trick gave.
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/sm90/bias_tile.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/products.cuh"

namespace onepass::sm90 {

// ------------------------------------------------------------------------------------------------------------ consumer
DEV void consume(u32 sm, u32 group, const TensorMap* out, const ForwardParams& p) {
  const u32 lane = threadIdx.x % 32, warp = group * 4 + threadIdx.x / 32 % 4;
  float s[kBlockN / 2], o[kOutN / 2];
  u32 w[kBlockN / 4];
  LaneRows rows;
  QueryOperand query;
  Ring<kQStages> q;
  Ring<kStages> k, v;
  Ring<kBiasTiles ? config.bias_stages : 1> bias;
  TileScores scores{p};
  Redo redo;

  const auto full_k = [&] { return sm + kFullK + 8 * k.slot; };
  const auto full_v = [&] { return sm + kFullV + 8 * v.slot; };
  const auto release_k = [&] {
    if (lane == 0) mbar_arrive(sm + kEmptyK + 8 * k.slot);
    k.next();
  };  // one arrival a warp
  const auto release_v = [&] {
    if (lane == 0) mbar_arrive(sm + kEmptyV + 8 * v.slot);
    v.next();
  };
  const auto release_q = [&] {
    __syncwarp();
    if (lane == 0) mbar_arrive(sm + kEmptyQ + 8 * q.slot);
    q.next();
  };
  const auto warp_row = [&](const TileWork& x) { return x.row + static_cast<i32>(warp * 16); };
  const auto turn_wait = [&] {
    if (config.ping_pong) bar_sync(1 + group, 256);
  };
  const auto turn_pass = [&] {
    if (config.ping_pong) bar_arrive(1 + (group + 1 == kGroups ? 0 : group + 1), 256);
  };
  const auto qk = [&] { issue_qk(s, query, sm + kLayout.k + k.slot * kLayout.k_bytes); };
  const auto pv = [&](i32 accumulate) { issue_pv(o, w, sm + kLayout.v + v.slot * kLayout.v_bytes, accumulate); };
  const auto before = [&](i32 n) { return scores.before<kBlockN / 2>(n * kKeys); };
  const auto apply = [&](i32 n, const BeforeScores& known) {  // everything between Q K^T and the softmax
    if constexpr (kBiasTiles) {
      const u32 slot = bias.slot * kGroups + group;
      mbar_wait(sm + kFullB + 8 * slot, bias.parity);
      scores.apply(s, n * kKeys, known,
                   BiasTile<features.bias>{sm + kLayout.bias + slot * kLayout.bias_bytes, threadIdx.x / 32 % 4 * 16});
      __syncwarp();
      if (lane == 0) mbar_arrive(sm + kEmptyB + 8 * slot);
      bias.next();
    } else {
      scores.apply(s, n * kKeys, known);
    }
  };
  const auto take_tile = [&] {
    mbar_wait(sm + kFullQ + 8 * q.slot, q.parity);
    return load_tile(sm + kLayout.slots + kSlotBytes * q.slot);
  };
  const auto pack = [&](int j, const float(&four)[4]) { pack_four<Element, kBlockN / 2>(j, four, w); };
  const auto leave = [&](int j, const float(&four)[4]) {  // where the scores stood: w is an operand under way
    for (int i = 0; i < 4; ++i) s[j + i] = four[i];
  };
  const auto open_tile = [&](const TileWork& x, const auto& put) {
    scores.open(x, warp_row(x));
    const i32 n = x.n_hi - 1;
    apply(n, before(n));
    softmax_first<Element, kRoundedSums>(s, put, rows, scores.unit(), scores.drop(n * kKeys),
                                         scores.columns<kBlockN / 2>(n * kKeys));
  };
  const auto end = [&](const TileWork& x) {
    const RowsEnd e = end_sums(p, x, rows);
    write_lses(p, x, FragmentRows::from(warp_row(x)), e.lse);
    return e;
  };
  // Q in registers frees its shared copy at once; Q in shared memory is free after the tile's last S.
  const auto open_query = [&] {
    query.open(sm + kLayout.q + q.slot * kLayout.q_bytes + group * 8192);
    if (config.q_registers) release_q();
  };
  const auto close_query = [&] {
    if (!config.q_registers) release_q();
  };

  if (config.ping_pong && group == kGroups - 1) bar_arrive(1, 256);  // warpgroup 0 has the first turn
  for (TileWork x = take_tile(); x.row >= 0;) {
    open_query();
    // ---- the first block, alone
    mbar_wait(full_k(), k.parity);
    turn_wait();
    wgmma_fence();
    qk();
    turn_pass();
    wgmma_wait<0>();
    pin(s);
    release_k();
    open_tile(x, pack);
    i32 accumulate = 0;
    bool last = true;
    do {
      // ---- inside the tile: S of the next block ahead of P V of the one before
      bool k_here = mbar_try(full_k(), k.parity), v_here = mbar_try(full_v(), v.parity);
      for (i32 n = x.n_hi - 1; n > x.n_lo;) {
        n = next_block<kKeys>(p, x, n);
        if (!k_here) mbar_wait(full_k(), k.parity);
        if (!v_here) mbar_wait(full_v(), v.parity);
        turn_wait();
        pin(w);
        pin(o);
        wgmma_fence();
        qk();
        pv(accumulate);
        accumulate = 1;
        turn_pass();
        const BeforeScores known = before(n);
        wgmma_wait<1>();
        pin(s);
        release_k();
        apply(n, known);
        wgmma_wait<0>();
        pin(o);
        pin(w);
        release_v();
        k_here = mbar_try(full_k(), k.parity),
        v_here = mbar_try(full_v(), v.parity);  // asked now, needed after the softmax
        softmax_next<Element, kRoundedSums>(s, w, o, rows, scores.unit(), scores.drop(n * kKeys));
      }
      close_query();
      if constexpr (config.flat) {
        // ---- tile border: the next tile's first S ahead of this tile's last P V. Under the two: this tile's sums,
        // then the next one's first softmax
        const TileWork y = take_tile();
        last = y.row < 0;
        if (!last) {
          open_query();
          mbar_wait(full_k(), k.parity);
          mbar_wait(full_v(), v.parity);
          turn_wait();
          pin(w);
          pin(o);
          wgmma_fence();
          qk();
          pv(accumulate);
          turn_pass();
          const RowsEnd e = end(x);
          wgmma_wait<1>();
          pin(s);
          release_k();
          if constexpr (kEarlySoftmax) open_tile(y, leave);
          wgmma_wait<0>();
          pin(o);
          pin(w);
          release_v();
          finish(sm, warp, out, p, x, warp_row(x), o, e, redo);
          if constexpr (kEarlySoftmax) {
#pragma unroll
            for (int j = 0; j < int(kBlockN / 2); j += 4) pack(j, {s[j], s[j + 1], s[j + 2], s[j + 3]});
          } else {
            open_tile(y, pack);
          }
          x = y;
          accumulate = 0;
        }
      }
    } while (config.flat && !last);
    // ---- the last P V, alone
    mbar_wait(full_v(), v.parity);
    pin(w);
    pin(o);
    wgmma_fence();
    pv(accumulate);
    const RowsEnd e = end(x);
    wgmma_wait<0>();
    pin(o);
    pin(w);
    release_v();
    finish(sm, warp, out, p, x, warp_row(x), o, e, redo);
    if constexpr (config.flat) break;
    x = take_tile();
  }
  if (lane == 0) tma_store_wait();  // shared memory must outlive the last store
  __syncwarp();
  recompute(p, redo);
}

}  // namespace onepass::sm90

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(128 * (onepass::sm90::kGroups + 1), 1)
    attention_forward(const __grid_constant__ onepass::TensorMap q, const __grid_constant__ onepass::TensorMap k,
                      const __grid_constant__ onepass::TensorMap v, const __grid_constant__ onepass::TensorMap out,
                      const __grid_constant__ onepass::TensorMap bias,
                      const __grid_constant__ onepass::ForwardParams p) {
  using namespace onepass;
  using namespace onepass::sm90;
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 sm = shared_address(smem), group = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    if (sm & 1023) __trap();  // the swizzle pattern is a function of the address
    for (u32 i = 0; i < kQStages; ++i) {
      mbar_init(sm + kFullQ + 8 * i, 1);
      mbar_init(sm + kEmptyQ + 8 * i, 4 * kGroups);
    }
    for (u32 i = 0; i < kStages; ++i) {
      mbar_init(sm + kFullK + 8 * i, 1);
      mbar_init(sm + kEmptyK + 8 * i, 4 * kGroups);
      mbar_init(sm + kFullV + 8 * i, 1);
      mbar_init(sm + kEmptyV + 8 * i, 4 * kGroups);
    }
    for (u32 i = 0; i < config.bias_stages * kGroups; ++i) {
      mbar_init(sm + kFullB + 8 * i, 1);
      mbar_init(sm + kEmptyB + 8 * i, 4);
    }
    mbar_init_fence();
    tma_prefetch(&q);
    tma_prefetch(&k);
    tma_prefetch(&v);
    tma_prefetch(&out);
  }
  __syncthreads();
  if (group == 0) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    if (warp_uniform(threadIdx.x / 32) == 0) produce(sm, {&q, &k, &v, &bias}, p);
  } else {
    registers_up<config.consumer_registers>();
    consume(sm, group - 1, &out, p);
  }
}
