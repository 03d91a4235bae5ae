// The tile in hand and the scores of a warp's rows.
#pragma once
#include "cuda/sm80/forward/epilogue.cuh"

namespace onepass::sm80 {

DEV WorkTile take_tile(u32 from, const ForwardParams& p) {
  WorkTile x = load_tile(from);
  if constexpr (!features.packed) {  // what the parameters know needs no registers
    x.q_begin = 0, x.seq_q = p.seq_q;
    x.map_batch = x.batch;
  }
  if constexpr (!features.packed_k()) x.k_begin = 0;
  if constexpr (!features.packed_k() && !features.seqused) x.seq_k = p.seq_k;
  return x;
}

template <i32 n>
struct RowScores {
  Scores of[n];
};
template <i32 n>
DEV RowScores<n> row_scores(const ForwardParams& p) {
  if constexpr (n == 1)
    return {{{p}}};
  else
    return {{{p}, {p}}};
}

DEV void open_rows(Scores (&scores)[kRowTiles], const WorkTile& x) {
  const i32 first = x.row + static_cast<i32>(own_rows());
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) scores[r].open(x, first, 16 * r);
}
// True if a row of the warp sees a key of block n. The CTA loads everything that one of its warps sees.
DEV bool sees(const Scores (&scores)[kRowTiles], i32 n) {
  return scores[0].sees_before((n + 1) * kBlockN) && scores[kRowTiles - 1].sees_from(n * kBlockN);
}

}  // namespace onepass::sm80
