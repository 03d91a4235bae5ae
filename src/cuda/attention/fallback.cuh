// The non-finite fallback: sixteen rows at a time whose result is not finite.
//
// P V multiplies masked weights of 0 with whatever V holds, so a NaN or an infinity in V reaches rows that do not see
// it. Rows whose result is not finite are therefore looked at once more here, at the end of a warp's work. Finite
// results never come here.
#pragma once
#include "cuda/attention/fallback/block.cuh"
#include "cuda/attention/fallback/row.cuh"

namespace onepass {

// Sixteen rows of a head.
struct HeadRows {
  static constexpr bool kPackedMask = true;
  const ForwardParams& p;
  const WorkTile& x;
  const HeadScores& of_head;
  i32 first, lane;

  DEV i32 row(i32 i) const { return first + 8 * i + lane / 4; }
  DEV i32 head(i32) const { return x.head; }
  DEV bool exists(i32 i) const { return row(i) < x.seq_q; }
  DEV const WorkTile& tile(i32) const { return x; }
  DEV const HeadScores& scores(i32) const { return of_head; }
  DEV Band32::Range keys() const { return of_head.band.key_range(first, min(first + 16, x.seq_q)); }
  DEV const char* query(i32 i) const {
    if (!exists(i)) return nullptr;
    const i64 at = x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + (x.q_begin + row(i)) * p.q_stride[2];
    return static_cast<const char*>(p.q) + at * bytes_of(features.input);
  }
  DEV auto drop(i32 key) const {
    if constexpr (features.dropout)
      return DropPair{p.dropout,
                      static_cast<u32>(x.batch),
                      static_cast<u32>(x.head),
                      static_cast<u32>(row(0)),
                      static_cast<u32>(key),
                      static_cast<u32>(lane % 4)};
    else
      return KeepAll{};
  }
};

// Everything this warp has remembered. Its tiles' stores must have completed. kAligned: rows of q, k and v begin at
// multiples of 16 bytes.
template <bool kAligned>
DEV void run_fallback(const ForwardParams& p, const FallbackRows& fallback) {
  const i32 lane = static_cast<i32>(opaque_thread() % 32);  // of no use before, where registers are dear
#pragma unroll 1
  for (i32 at = fallback.last; at >= 0;) {
    const FallbackEntry e = p.fallback[at];
    const i32 first = e.row / 16 * 16;
    WorkTile x;
    x.batch = e.batch, x.head = e.head, x.map_batch = features.packed ? 0 : e.batch;
    x.q_begin = features.packed ? p.cu_q[e.batch] : 0,
    x.seq_q = features.packed ? p.cu_q[e.batch + 1] - x.q_begin : p.seq_q;
    find_keys(p, x);
    x.row = first;
    HeadScores scores{p};
    scores.open(x);
    if constexpr (bytes_of(features.keys) != 1 && !forward_features.v_mean) {
      fallback::repair<kAligned>(HeadRows{p, x, scores, first, lane}, e.row != first);
    } else {
#pragma unroll 1
      for (i32 row = first; row < min(first + 16, x.seq_q); ++row) fallback_row(p, x, scores, row);
    }
    at = e.before;
  }
}

}  // namespace onepass
