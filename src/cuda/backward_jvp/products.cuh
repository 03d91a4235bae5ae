// A warp's products of a block: of its sixteen held rows with the streamed ones, and of the pairs' terms with these.
#pragma once
#include "cuda/backward_jvp/pairs.cuh"
#include "cuda/backward_jvp/stream.cuh"
#include "cuda/device/barrier.cuh"
#include "cuda/mma/tile_rows.cuh"
#include "cuda/sm80/share.cuh"

namespace onepass::cuda::backward_jvp {

template <bool kKeys, i32 N>
DEV void multiply_left(float (&s)[1][N], float (&moved)[1][N], u32 sm, u32 stage) {
  constexpr SecondLayout l = Pass<kKeys>::kLayout;
  using Rows = TileRows<LeftFragments<1, l.pitch[kLeft]>>;
  multiply_both<kQkDepth, l.pitch[kLeft]>(s, moved, stage + l.block[kLeft], stage + l.block[kLeftMoved],
                                          Rows{sm + l.held[kLeft]}, Rows{sm + l.held[kLeftMoved]});
}
template <bool kKeys, i32 N>
DEV void multiply_right(float (&dp)[1][N], float (&moved)[1][N], u32 sm, u32 stage) {
  constexpr SecondLayout l = Pass<kKeys>::kLayout;
  using Rows = TileRows<LeftFragments<1, l.pitch[kRight]>>;
  multiply_both<kOutN, l.pitch[kRight], kMovesHeld<kKeys>, kMovesStreamed<kKeys>>(
      dp, moved, stage + l.block[kRight], stage + l.block[kRightMoved], Rows{sm + l.held[kRight]},
      Rows{sm + l.held[kRightMoved]});
}
// Hands two fragments to the other warp of the pair and takes its two. The CTA meets between two calls.
template <i32 N>
DEV void exchange(u32 place, const float (&a)[1][N], const float (&b)[1][N], float (&other_a)[1][N],
                  float (&other_b)[1][N]) {
  const u32 thread = opaque_thread(), warp = thread / 32, lane = thread % 32;
  const auto at = [&](u32 of, i32 j) { return place + of * (256 * N) + 128 * static_cast<u32>(j) + 16 * lane; };
  const auto put = [&](const float(&x)[1][N], i32 first) {
#pragma unroll
    for (i32 j = 0; j < N; j += 4)
      store_four(at(warp, first + j), __float_as_uint(x[0][j]), __float_as_uint(x[0][j + 1]),
                 __float_as_uint(x[0][j + 2]), __float_as_uint(x[0][j + 3]));
  };
  const auto take = [&](float(&x)[1][N], i32 first) {
#pragma unroll
    for (i32 j = 0; j < N; j += 4) {
      u32 w[4];
      load_four(at(warp ^ 1, first + j), w[0], w[1], w[2], w[3]);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) x[0][j + e] = __uint_as_float(w[e]);
    }
  };
  put(a, 0);
  put(b, N);
  bar_sync(1 + warp / 2, 64);
  take(other_a, 0);
  take(other_b, N);
}

template <bool kKeys, bool kScores, i32 N>
DEV void multiply_block(BlockProducts<N>& x, u32 sm, u32 stage) {
  if constexpr (!kScores) {
    multiply_left<kKeys>(x.s, x.moved_s, sm, stage);
    clear(x.dp);
    clear(x.moved_dp);
  } else if constexpr (kShare == 1) {
    multiply_left<kKeys>(x.s, x.moved_s, sm, stage);
    multiply_right<kKeys>(x.dp, x.moved_dp, sm, stage);
  } else if (sm80::own_part() == 0) {
    multiply_left<kKeys>(x.s, x.moved_s, sm, stage);
    exchange(sm + Pass<kKeys>::kLayout.exchange, x.s, x.moved_s, x.dp, x.moved_dp);
  } else {
    multiply_right<kKeys>(x.dp, x.moved_dp, sm, stage);
    exchange(sm + Pass<kKeys>::kLayout.exchange, x.dp, x.moved_dp, x.s, x.moved_s);
  }
}

// sum += W B: this warp's columns of a streamed block.
template <i32 tokens, i32 pitch, i32 N>
DEV void add_rows(float (&sum)[1][N], const Weights<tokens> (&w)[1], u32 block) {
  multiply_columns<tokens, pitch, kShare>(sum, w, block, kShare == 1 ? 0 : sm80::own_part());
}

}  // namespace onepass::cuda::backward_jvp
