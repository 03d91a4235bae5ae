// From the products of a block to the operands of its sums, pair by pair. A lane has a fragment's two held tokens, and
// for each eight streamed ones two neighbouring columns.
#pragma once
#include "cuda/attention/softmax.cuh"
#include "cuda/backward_jvp/work.cuh"
#include "cuda/device/shared.cuh"

namespace onepass::cuda::backward_jvp {

// S and dP of a block, and their derivatives along the tangents: N of a lane's, of one tile of rows.
template <i32 N>
struct BlockProducts {
  float s[1][N], moved_s[1][N], dp[1][N], moved_dp[1][N];
};

// A row that sees nothing has weights of 0 by a reference of +inf.
DEV RowNumbers usable(RowNumbers r) {
  if (r.reference == kNegInf) r.reference = -kNegInf;
  return r;
}
// The numbers of a fragment's rows: of its own two, or of the streamed rows of two neighbouring columns.
struct OwnNumbers {
  RowNumbers row[2];
  static DEV OwnNumbers of_rows(const PlainBackwardParams& p, const WorkTile& x, i32 own) {
    OwnNumbers n;
#pragma unroll
    for (i32 i = 0; i < 2; ++i)
      n.row[i] = usable(numbers_of(p, x, own + static_cast<i32>(threadIdx.x % 32 / 4) + 8 * i));
    return n;
  }
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
template <i32 N>
struct TermOperands {
  Operand<Element, N> v[1], other_v[1], x[1], other_x[1];
};

// Which streamed tokens the fragment's two rows see by the band; `all`: the whole warp sees the whole block.
struct Seen {
  bool all;
  Band32::Range of[2];
};
template <bool kKeys, i32 kStreamed>
DEV Seen seen_of(const HeadScores& scores, i32 held, i32 first) {
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
                    TermOperands<N>& to, i32 held, i32 first, const Seen& seen, Numbers& numbers, const Side& side) {
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
                    TermOperands<N>& to, i32 held, i32 first, Numbers numbers, const Side& side) {
  const Seen seen = seen_of<kKeys, 2 * N>(scores, held, first);
  if (seen.all)
    find_terms<kKeys, true>(p, scores, x, to, held, first, seen, numbers, side);
  else
    find_terms<kKeys, false>(p, scores, x, to, held, first, seen, numbers, side);
}

}  // namespace onepass::cuda::backward_jvp
