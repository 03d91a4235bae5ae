// A warp's work on a block: the products of its sixteen held rows with the streamed ones, and what each pair adds to
// the sums, as the left operands of the next products.
#pragma once
#include "cuda/attention/softmax.cuh"
#include "cuda/backward_jvp/stream.cuh"
#include "cuda/device/barrier.cuh"
#include "cuda/mma/tile_rows.cuh"
#include "cuda/sm80/share.cuh"

namespace onepass::cuda::backward_jvp {

// S and dP of a block, and their derivatives along the tangents.
template <i32 N>
struct BlockProducts {
  float s[1][N], moved_s[1][N], dp[1][N], moved_dp[1][N];
};
template <bool kKeys, i32 N>
DEV void multiply_left(float (&s)[1][N], float (&moved)[1][N], u32 sm, u32 stage) {
  constexpr SecondLayout l = Pass<kKeys>::kLayout;
  using Rows = TileRows<LeftFragments<1, l.pitch[kLeft]>>;
  multiply_both<kQkDepth, l.pitch[kLeft]>(s, moved, stage + l.block[kLeft], stage + l.block[kLeftMoved],
                                          Rows{sm + l.held[kLeft]}, Rows{sm + l.held[kLeftMoved]});
}
template <bool kKeys, i32 N>
DEV void multiply_right(float (&dp)[1][N], float (&moved)[1][N], u32 sm, u32 stage) {
  using P = Pass<kKeys>;
  constexpr SecondLayout l = P::kLayout;
  using Rows = TileRows<LeftFragments<1, l.pitch[kRight]>>;
  multiply_both<kOutN, l.pitch[kRight], P::kMovesHeld, P::kMovesStreamed>(
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

// A row that sees nothing has weights of 0 by a reference of +inf.
DEV RowNumbers usable(RowNumbers r) {
  if (r.reference == kNegInf) r.reference = -kNegInf;
  return r;
}
// The numbers of a fragment's rows: of its own two, or of the streamed rows of two neighbouring columns.
struct OwnNumbers {
  RowNumbers row[2];
  DEV void load(int) const {}
  DEV const RowNumbers& of(int j) const { return row[row_of_element(j)]; }
};
template <i32 rows>
struct StreamedNumbers {
  u32 from;
  RowNumbers column[2];
  DEV void load(int j) {
    float x[4][2];
#pragma unroll
    for (u32 kind = 0; kind < 4; ++kind)
      load_pair(x[kind], from + 4 * (kind * rows + static_cast<u32>(column_of(j, threadIdx.x % 4))));
#pragma unroll
    for (int i = 0; i < 2; ++i) column[i] = usable({x[0][i], x[1][i], x[2][i], x[3][i]});
  }
  DEV const RowNumbers& of(int j) const { return column[j & 1]; }
};

// Operands of the sums: v, other_v times dO and tdO; x, other_x times Q or K and its tangent (Terms).
template <i32 tokens>
struct TermOperands {
  Weights<tokens> v[1], other_v[1], x[1], other_x[1];
};

// Which streamed tokens the fragment's two rows see by the band; `all`: the whole warp sees the whole block.
struct Seen {
  bool all;
  Band32::Range of[2];
};
template <bool kKeys>
DEV Seen seen_of(const HeadScores& scores, i32 held, i32 first) {
  constexpr i32 kStreamed = Pass<kKeys>::kStreamed;
  const Band32& band = scores.band;
  const i32 rows = kKeys ? first : held, keys = kKeys ? held : first;
  const i32 row_end = rows + (kKeys ? kStreamed : 16), key_end = keys + (kKeys ? 16 : kStreamed);
  Seen x;
  x.all = row_end <= band.seq_q && band.keys_of(row_end - 1).lo <= keys && key_end <= band.keys_of(rows).hi;
  if (x.all) return x;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const i32 own = held + static_cast<i32>(threadIdx.x % 32 / 4) + 8 * i;
    x.of[i] = kKeys ? rows_that_see(band, own, own + 1) : band.keys_of(own);
    if (own >= (kKeys ? band.seq_k : band.seq_q)) x.of[i] = {0, 0};
  }
  return x;
}

// side(row, key, term): the bias's term of each pair (Terms).
template <bool kKeys, bool kAll, i32 N, class Numbers, class Side>
DEV void find_terms(const PlainBackwardParams& p, const HeadScores& scores, const BlockProducts<N>& x,
                    TermOperands<2 * N>& to, i32 held, i32 first, const Seen& seen, Numbers& numbers,
                    const Side& side) {
  const u32 lane = threadIdx.x % 32, quad = lane % 4;
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    float v[4], other_v[4], w[4], other_w[4];
    numbers.load(j);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = row_of_element(e);
      const i32 own = held + static_cast<i32>(lane / 4) + 8 * i, at = first + column_of(j + e, quad);
      const i32 row = kKeys ? at : own, key = kKeys ? own : at;
      bool is_seen = kAll || (at >= seen.of[i].lo && at < seen.of[i].hi);
      if constexpr (features.masks()) is_seen = is_seen && !scores.masked(row, key);
      backward_plain::Terms t =
          backward_plain::terms_of<false>(p, scores, numbers.of(j + e), x.s[0][j + e], x.moved_s[0][j + e],
                                          x.dp[0][j + e], x.moved_dp[0][j + e], row, key);
      if (features.masks() || !kAll) t = is_seen ? t : backward_plain::Terms{};
      v[e] = t.v, other_v[e] = t.other_v, w[e] = t.x, other_w[e] = t.other_x;
      side(row, key, t.side);
    }
    pack_four<Element, N>(j, v, to.v[0]);
    pack_four<Element, N>(j, other_v, to.other_v[0]);
    pack_four<Element, N>(j, w, to.x[0]);
    pack_four<Element, N>(j, other_w, to.other_x[0]);
  }
}

// The same of a block that the warp sees all or part of.
template <bool kKeys, i32 N, class Numbers, class Side>
DEV void find_terms(const PlainBackwardParams& p, const HeadScores& scores, const BlockProducts<N>& x,
                    TermOperands<2 * N>& to, i32 held, i32 first, Numbers numbers, const Side& side) {
  const Seen seen = seen_of<kKeys>(scores, held, first);
  if (seen.all)
    find_terms<kKeys, true>(p, scores, x, to, held, first, seen, numbers, side);
  else
    find_terms<kKeys, false>(p, scores, x, to, held, first, seen, numbers, side);
}

// sum += W B: this warp's columns of a streamed block.
template <i32 tokens, i32 pitch, i32 N>
DEV void add_rows(float (&sum)[1][N], const Weights<tokens> (&w)[1], u32 block) {
  multiply_columns<tokens, pitch, kShare>(sum, w, block, kShare == 1 ? 0 : sm80::own_part());
}

}  // namespace onepass::cuda::backward_jvp
