// Attention forward for sm_80 and later: O = softmax(scores) V and its row log-sum-exp, by mma.sync and cp.async.
//
// A CTA takes tiles of work (head, query rows) from a counter, longest first. Each of its warps holds row_tiles times
// sixteen of the rows, alone, or shares them with another: beyond 256 columns of O. A warp's work on a block of keys:
//
//   S = Q K^T           fragments of Q (registers or shared memory) and K (shared memory); fp32 S in registers
//   P = 2^(S - m)       lazy online softmax in registers; S's fragment layout is the A-operand layout of P V
//   O += P V            P from registers, V from shared memory read transposed
//
// The products are those of the file that the config includes (products_16.cuh, products_f32.cuh). README.md has the
// schedule in steps, the budgets and what was measured.
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/sm80/forward/epilogue.cuh"
#include "cuda/sm80/forward/kv_pipeline.cuh"
#include "cuda/sm80/forward/warp_rows.cuh"

namespace onepass::sm80 {

// Every warp of the CTA works on the tile at `work`; `meanwhile` is called while the first copies are under way. A turn
// of the loop, in the order of time; blocks go from the last one to the first:
//
//   block n          | the blocks after it
//   wait for K       | copy V of block n - stages + 1
//   S = Q K^T        |
//   wait for V       | copy K of block n - stages
//   scores, softmax  |
//   O += P V         |
template <class Meanwhile>
DEV void attend(u32 sm, u32 work, const ForwardParams& p, const Meanwhile& meanwhile) {
  const WorkTile x = take_tile(work, p);
  float s[kRowTiles][kBlockN / 2], o[kRowTiles][kOutSums];
  Weights<kBlockN> w[kRowTiles];
  LaneRows rows[kRowTiles];
  QueryOperand query{sm + kLayout.q};
  const KeyValueRing ring = ring_of(sm, p, x);
  copy_query(sm, p, x);  // in the group of the first K
  ring.begin();
  meanwhile();
  auto [scores] = row_scores<kRowTiles>(p);
  open_rows(scores, x);
  for (LaneRows& r : rows) r = {};
  clear(o);
#pragma unroll 1
  for (i32 n = ring.last, fresh = true; n >= ring.first(); --n) {
    ring.take_k(n);
    if (config.q_registers && n == ring.last) query.load();
    const bool seen = sees(scores, n);
    if (seen)
      issue_scores(s, query, ring.k_tile(n), sm);
    else
      clear(s);  // or what stood there would have to be kept
    ring.take_v(n);
    if (!seen) continue;
    take_scores(s, sm);
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      const BeforeScores known = scores[r].before<kBlockN / 2>(n * kBlockN);
      scores[r].apply(s[r], n * kBlockN, known);
      const auto drop = scores[r].drop(n * kBlockN);
      rows[r].see(s[r], scores[r].unit().unit);
      if (fresh || !softmax_lazy<Element, kRoundedSums>(s[r], w[r], rows[r], scores[r].unit(), drop))
        softmax_exact<Element, kRoundedSums>(s[r], w[r], o[r], rows[r], scores[r].unit(), drop);
    }
    issue_accumulate(o, w, ring.v_tile(n));
    fresh = false;
  }
  const WorkTile y = take_tile(work, p);  // again: its registers were needed in between
  open_rows(scores, y);
  const u32 chain = sm + kLayout.fallback + opaque_thread() / 32 * 4;
  FallbackRows fallback{load_word(chain)};
  store_output(sm, p, y, scores, o, rows, fallback);
  store_word(chain, fallback.last);
}

}  // namespace onepass::sm80

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm80::kThreads, onepass::sm80::config.blocks)
    attention_forward(const __grid_constant__ onepass::EntropyParams p) {
  using namespace onepass;
  using namespace onepass::sm80;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const auto warp = [] { return opaque_thread() / 32; };  // known where it is needed, in no register in between
  const u32 work = sm + kLayout.work, next = work + 64;   // the tile in hand, the one behind it
  const Tiles tiles{p};
  const auto take = [&](i32 number) {  // by the first warp, for all
    const WorkTile x = tiles.order.tile(number);
    if (opaque_thread() == 0) store_tile(next, x);
  };
  const auto take_next = [&] {
    if (warp() == 0) take(tiles.draw());
  };
  if (opaque_thread() % 32 == 0) store_word(sm + kLayout.fallback + 4 * warp(), -1);
  if (warp() == 0) take(tiles.first());
  for (;;) {
    __syncthreads();  // the next tile is known, and this tile's shared memory is free
    const WorkTile x = take_tile(next, p);
    if (x.row < 0) break;
    if (opaque_thread() == 0) {
      store_tile(work, x);
      store_bases(sm + kLayout.bases, p, x);
    }
    __syncthreads();
    if (x.n_lo < x.n_hi) {
      attend(sm, work, p, take_next);
    } else {  // no row sees any key
      take_next();
      constexpr i32 kRows = kBlockM / config.warps;
      write_empty(p, x, x.row + static_cast<i32>(warp()) * kRows, kRows);
    }
  }
  if (warp() == 0) tiles.reset();
  __syncwarp();  // what this warp has stored stands before what it stores again
  using Team = fallback::Team<config.warps, 0, fallback::LittleRoom>;
  run_fallback<config.copy_bytes == 16, 2, config.warps * kRowTiles>(p, {load_word(sm + kLayout.fallback + 4 * warp())},
                                                                     Team{sm, static_cast<i32>(warp())});
}
