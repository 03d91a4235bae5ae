// The non-finite fallback: sixteen rows at a time whose result is not finite.
//
// P V multiplies masked weights of 0 with whatever V holds, so a NaN or an infinity in V reaches rows that do not see
// it. Rows whose result is not finite are therefore looked at once more here, at the end of a warp's work. Finite
// results never come here.
#pragma once
#include "cuda/attention/fallback/explain.cuh"
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
  DEV const char* query(i32 i) const { return query_of(row(i)); }
  DEV const char* query_of(i32 number) const {
    if (number >= x.seq_q) return nullptr;
    const i64 at = x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + (x.q_begin + number) * p.q_stride[2];
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

// The rows that a team's warps have left in a tile, of which this warp has those from `first` on, or none. wrong: a
// row's state is not right. kAligned: rows of q, k and v begin at multiples of 16 bytes, those of O of kOutBytes.
template <bool kAligned, i32 kOutBytes, class Team>
DEV void repair_tile(const ForwardParams& p, const Team& team, const typename Team::Tile& tile, const WorkTile& x,
                     const HeadScores& scores, i32 first, bool wrong) {
  using namespace fallback;
  const i32 lane = static_cast<i32>(opaque_thread() % 32);
  const HeadRows rows{p, x, scores, first, lane};
  const KeyValueView view = KeyValueView::of(p, x);
  const Band32::Range keys = scores.band.key_range(tile.first, min(tile.end, x.seq_q));
  const KeyRows k{p, view, p.k, p.k_stride, keys.hi}, v{p, view, p.v, p.v_stride, keys.hi};
  const u32 elements = elements_of<kAligned>(rows);
  WildBlocks<(kSpanGroups > 1)> blocks;
  bool wild = false;
  if constexpr (kExplains) {
    ask_ahead(rows, wrong);
    ask_ahead(team, k, v, keys.lo);
    const auto query = [&](i32 row) { return rows.query_of(first + row); };
    wild = !kCapLast && has_wild<kAligned, 16, typename Team::Room>(query, lane);
  }
#pragma unroll 1
  for (i32 begin = 0; begin < kSpanGroups * kGroupSpans * kSpan; begin += kGroupSpans * kSpan) {
    Elements bad = look_at_group<kOutBytes>(rows, begin, wrong);
#pragma unroll
    for (u32& some : bad.of) some &= elements;
    Elements found = {};
    if constexpr (kExplains) found = explain<kAligned>(bad, rows, team, k, v, keys, begin, wild, blocks);
#pragma unroll 1
    for (i32 s = 0; s < kGroupSpans; ++s) {
      u32 left = 0;
#pragma unroll
      for (i32 i = 0; i < kGroupSpans; ++i) left = i == s ? bad.of[i] & (wrong ? ~0u : ~found.of[i]) : left;
      if (__any_sync(kAll, left != 0))
        recompute<kAligned, typename Team::Room>(left, rows, k, v, begin + s * kSpan, wrong);
    }
  }
}

// Everything that the warps of a team have remembered. Each warp's stores of its tiles must have completed. kPlaces:
// entries of a tile.
template <bool kAligned, i32 kOutBytes, i32 kPlaces, class Team>
DEV void run_fallback(const ForwardParams& p, const FallbackRows& fallback, const Team& team) {
  constexpr bool kByPairs = bytes_of(features.keys) == 1 || forward_features.v_mean;
  team.sync();
#pragma unroll 1
  for (i32 at = fallback.last;;) {
    FallbackEntry e = {-1, -1, -1, -1};
    if (at >= 0) e = p.fallback[at];
    if (at >= 0 && e.before >= 0) prefetch(p.fallback + e.before);
    const auto tile = team.agree({at < 0 ? -1 : at / kPlaces, e.row / 16 * 16, e.batch, e.head});
    if (tile.number < 0) return;
    const bool own = at >= 0 && at / kPlaces == tile.number;
    WorkTile x;
    x.batch = tile.batch, x.head = tile.head, x.map_batch = features.packed ? 0 : x.batch;
    x.q_begin = features.packed ? p.cu_q[x.batch] : 0,
    x.seq_q = features.packed ? p.cu_q[x.batch + 1] - x.q_begin : p.seq_q;
    find_keys(p, x);
    const i32 first = own ? e.row / 16 * 16 : x.seq_q;
    x.row = first;
    HeadScores scores{p};
    scores.open(x);
    if constexpr (kByPairs) {
#pragma unroll 1
      for (i32 row = first; row < min(first + 16, x.seq_q); ++row) fallback_row(p, x, scores, row);
    } else {
      repair_tile<kAligned, kOutBytes>(p, team, tile, x, scores, first, own && e.row != first);
    }
    if (own) at = e.before;
    team.sync();
  }
}

}  // namespace onepass
