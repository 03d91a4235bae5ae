// Sixteen rows of dQ that are not finite, once more by one warp, on tensor cores: 64 columns at a time.
//
// As for keys (repair_keys.cuh), only visible pairs have a part, and elements of K that are not finite enter the
// product as zeros beside flags. The first pass takes only blocks of keys with such elements.
#pragma once
#include "cuda/attention/backward/repair_rows.cuh"

namespace onepass::fallback {

// Rows first .. first + 15 of the sequence and head of x. Lane 4 g + t has rows g and g + 8.
struct QueryRepair {
  const BackwardParams& p;
  const WorkTile& x;
  const i32 first, lane;
  static constexpr i32 kDim = features.dim_qk;

  DEV i32 own(i32 i) const { return first + lane / 4 + 8 * i; }
  DEV i64 place(i32 i) const {
    return token_offset(p.dq_stride, x.map_batch, x.head, x.q_begin + own(i)) + lane % 4 * 16;
  }

  // rows: all bits of this lane's rows that are to be repaired.
  DEV void run(u32 rows) const {
    HeadScores scores{p};
    scores.open(x);
#pragma unroll 1
    for (i32 column = 0; column < kDim; column += kSpan)
      repair_span<kDim>(
          p.dq, [&](i32 i) { return place(i); }, rows, column, RepairTeam{0, 0, 1},
          [&](Output& o, u32& flags, float& unit, u32 bad, bool all, bool& skipped) {
            add(scores, o, flags, unit, bad, column, all, skipped);
          });
  }

 private:
  DEV void add(const HeadScores& scores, Output& o, u32& flags, float& unit, u32 bad, i32 column, bool all,
               bool& skipped) const {
    const i32 kv_head = x.head / p.heads_per_kv;
    const TokenRows q = token_rows(p.q, p.q_stride, x.map_batch, x.head, x.q_begin, x.seq_q),
                    dout = token_rows(p.dout, p.dout_stride, x.map_batch, x.head, x.q_begin, x.seq_q),
                    k = token_rows(p.k, p.k_stride, x.map_batch, kv_head, x.k_begin, x.seq_k),
                    v = token_rows(p.v, p.v_stride, x.map_batch, kv_head, x.k_begin, x.seq_k);
    const Band32::Range from = scores.band.keys_of(first), to = scores.band.keys_of(min(first + 15, x.seq_q - 1));
    const i32 lo = min(from.lo, to.lo), hi = max(from.hi, to.hi);
#pragma unroll 1
    for (i32 key = lo / kKeys * kKeys; key < hi; key += kKeys) {
      if (!all && !has_special<kAlignedRepairs, kDim>(k, key, column, lane)) {
        skipped = true;
        continue;
      }
      Scores s, dp;
      multiply_rows<kAlignedRepairs, kDim>(s, {q(own(0)), q(own(1))}, k, key, lane);
      multiply_rows<kAlignedRepairs, features.dim_v>(dp, {dout(own(0)), dout(own(1))}, v, key, lane);
      const u32 seen = factors(s, dp, scores, key);
      if (!__any_sync(kAll, seen != 0)) continue;
      if constexpr (features.input == ScalarType::f16) fit(s, o, unit);
      flags |= multiply_columns<kAlignedRepairs, kDim>(o, s, seen, k, key, column, lane);
      if (all_right(bad, o, flags)) return;
    }
  }
  // Products of pairs become dS, those of hidden pairs 0. Returns a bit for each pair that is seen.
  DEV u32 factors(Scores& s, const Scores& dp, const HeadScores& scores, i32 first_key) const {
    const RowStatistics of[2] = {statistics_at(p, x, min(own(0), x.seq_q - 1)),
                                 statistics_at(p, x, min(own(1), x.seq_q - 1))};
    u32 seen = 0;
#pragma unroll
    for (i32 e = 0; e < kKeys / 2; ++e) {
      const i32 i = e / 2 % 2, key = first_key + column_of(e, lane % 4);
      const bool visible = is_visible(x, scores, own(i), key);
      PairWeights pair;
      if (!features.score_mod || visible) pair = weights_of_pair(p, x, scores, own(i), key, s[e], dp[e], of[i]);
      const bool sees = visible && pair.seen;
      s[e] = sees ? pair.slope : 0.0f;
      seen |= sees ? 1u << e : 0u;
    }
    return seen;
  }
};

}  // namespace onepass::fallback
