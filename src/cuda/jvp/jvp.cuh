// Forward mode for sm_80 and later: attention and its derivative along tangents, by mma.sync and cp.async.
//
// A CTA takes tiles of work (head, query rows) from a counter, longest first. Each of its warps holds row_tiles times
// sixteen of the rows, alone, or shares them with another: beyond 128 columns of O. A warp's work on a block of keys:
//
//   S = Q K^T, dS = tQ K^T + Q tK^T    fragments from shared memory; fp32 sums in registers
//   P = 2^(S - m), X = P dS            lazy online softmax; the fragments are the A operands of the next products
//   O += P V, tO += X V + P tV         V and its tangent from shared memory, read transposed
//   tO / l - mu O                      the end: mu = sum X / l is the derivative of the LSE
//
// Rows that come out not finite are computed again at once, pair by pair (row.cuh). README.md has the budgets.
#pragma once
#include "cuda/jvp/epilogue.cuh"
#include "cuda/jvp/pipeline.cuh"

namespace onepass::cuda::jvp {

using Tiles = TileScheduler<RowsOuter<kBlockM, kBlockN>>;

template <i32 n>
struct RowScores {
  Scores of[n];
};
template <i32 n>
DEV RowScores<n> row_scores(const JvpParams& p) {
  if constexpr (n == 1)
    return {{{p}}};
  else
    return {{{p}, {p}}};
}
DEV void open_rows(Scores (&scores)[kRowTiles], const WorkTile& x) {
  const i32 first = x.row + static_cast<i32>(sm80::own_rows());
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) scores[r].open(x, first, 16 * r);
}
// True if a row of the warp sees a key of block n. The CTA loads everything that one of its warps sees.
DEV bool sees(const Scores (&scores)[kRowTiles], i32 n) {
  return scores[0].sees_before((n + 1) * kBlockN) && scores[kRowTiles - 1].sees_from(n * kBlockN);
}

// Every warp of the CTA works on the tile at `work`; `meanwhile` is called while the first copies are under way. Blocks
// go from the last one to the first. "K" and "V" are these and their tangents:
//
//   wait for K, copy V of block n - stages + 1, S and dS
//   wait for V, copy K of block n - stages, scores, softmax, O and tO
template <class Meanwhile>
DEV void attend(u32 sm, u32 work, const JvpParams& p, const Meanwhile& meanwhile) {
  const WorkTile x = load_tile(work);
  float s[kRowTiles][kBlockN / 2], ds[kRowTiles][kBlockN / 2], o[kRowTiles][kOutSums], t[kRowTiles][kOutSums];
  Weights<kBlockN> w[kRowTiles], moved[kRowTiles];
  JvpRows rows[kRowTiles];
  const KeyValueRing ring = ring_of(sm, p, x);
  copy_queries(sm, p, x);  // in the group of the first K
  ring.begin();
  meanwhile();
  auto [scores] = row_scores<kRowTiles>(p);
  open_rows(scores, x);
  for (JvpRows& r : rows) r = {};
  clear(o);
  clear(t);
#pragma unroll 1
  for (i32 n = ring.last, fresh = true; n >= ring.first(); --n) {
    ring.take_k(n);
    const bool seen = sees(scores, n);
    if (seen) {
      block_scores(s, ds, sm, ring.k_tile(n));
    } else {
      clear(s);  // or what stood there would have to be kept
      clear(ds);
    }
    ring.take_v(n);
    if (!seen) continue;
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      const BeforeScores known = scores[r].template before<kBlockN / 2>(n * kBlockN);
      scores[r].apply_both(p, s[r], ds[r], n * kBlockN, known);
      const auto drop = scores[r].drop(n * kBlockN);
      if (fresh || !softmax_kept(s[r], ds[r], w[r], moved[r], rows[r], scores[r].unit(), drop))
        softmax_moved(s[r], ds[r], w[r], moved[r], o[r], t[r], rows[r], scores[r].unit(), drop);
    }
    block_sums(o, t, w, moved, ring.v_tile(n));
    fresh = false;
  }
  const WorkTile y = load_tile(work);  // again: its registers were needed in between
  open_rows(scores, y);
  store_results(sm, p, y, scores, o, t, rows);
}

}  // namespace onepass::cuda::jvp

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::mma::kThreads, onepass::mma::config.blocks)
    attention_jvp(const __grid_constant__ onepass::JvpParams p) {
  using namespace onepass;
  using namespace onepass::cuda::jvp;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const auto warp = [] { return opaque_thread() / 32; };
  const u32 work = sm + kLayout.work, next = work + 64;  // the tile in hand, the one behind it
  const Tiles tiles{p};
  const auto take = [&](i32 number) {  // by the first warp, for all
    const WorkTile x = tiles.order.tile(number);
    if (opaque_thread() == 0) store_tile(next, x);
  };
  const auto take_next = [&] {
    if (warp() == 0) take(tiles.draw());
  };
  if (warp() == 0) take(tiles.first());
  for (;;) {
    __syncthreads();  // the next tile is known, and this tile's shared memory is free
    const WorkTile x = load_tile(next);
    if (x.row < 0) break;
    if (opaque_thread() == 0) {
      store_tile(work, x);
      store_bases(sm, p, x);
    }
    __syncthreads();
    if (x.n_lo < x.n_hi) {
      attend(sm, work, p, take_next);
    } else {  // no row sees any key
      take_next();
      constexpr i32 kRows = kBlockM / config.warps;
      write_empty_rows(p, x, x.row + static_cast<i32>(warp()) * kRows, kRows);
    }
  }
  if (warp() == 0) tiles.reset();
}
