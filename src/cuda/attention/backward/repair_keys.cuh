// Sixteen rows of dK or dV that are not finite, once more by one warp, on tensor cores: 64 columns at a time.
//
// Only visible pairs have a part here. Elements of q or dO that are not finite enter the product as zeros, and flags
// say which elements see one. The first pass takes only blocks of rows in which a NaN or an infinity is likely to be.
// It ends once all elements that were not finite are known to be right. Otherwise a second one takes all blocks.
#pragma once
#include "cuda/attention/backward/repair_rows.cuh"
#include "cuda/attention/backward/repair_team.cuh"

namespace onepass::fallback {

// Keys first .. first + 15 of dK (slopes) or of dV, of kDim columns. Lane 4 g + t has keys g and g + 8. x: their head
// and sequence.
template <i32 kDim>
struct KeyRepair {
  const BackwardParams& p;
  const WorkTile& x;
  const i32 first, lane;
  const RepairTeam& team;
  const bool slopes;
  void* const to;
  const long long (&stride)[3];
  static constexpr i32 kAhead = 2;

  DEV i32 own(i32 i) const { return first + lane / 4 + 8 * i; }
  DEV i64 place(i32 i) const { return token_offset(stride, x.map_batch, x.head, x.k_begin + own(i)) + lane % 4 * 16; }

  // Columns `column` to `column` + 63. rows: all bits of this lane's keys that exist.
  DEV void run(u32 rows, i32 column) const {
    repair_span<kDim>(
        to, [&](i32 i) { return place(i); }, rows, column, team,
        [&](Output& o, u32& flags, float& unit, u32 bad, bool all, bool& skipped) {
          add(o, flags, unit, bad, column, all, skipped);
        });
  }

 private:
  DEV void add(Output& o, u32& flags, float& unit, u32 bad, i32 column, bool all, bool& skipped) const {
#pragma unroll 1
    for (i32 head = x.head * p.heads_per_kv; head < (x.head + 1) * p.heads_per_kv; ++head) {
      WorkTile y = x;
      y.head = head;
      HeadScores scores{p};
      scores.open(y);
      const TokenRows q = token_rows(p.q, p.q_stride, x.map_batch, head, x.q_begin, x.seq_q),
                      dout = token_rows(p.dout, p.dout_stride, x.map_batch, head, x.q_begin, x.seq_q),
                      k = token_rows(p.k, p.k_stride, x.map_batch, x.head, x.k_begin, x.seq_k),
                      v = token_rows(p.v, p.v_stride, x.map_batch, x.head, x.k_begin, x.seq_k);
      const TokenRows source = slopes ? q : dout;
      const Band32::Range rows = rows_that_see(scores.band, first, min(first + 16, x.seq_k));
#pragma unroll 1
      for (i32 row = (rows.lo / kKeys + team.warp) * kKeys; row < rows.hi; row += team.warps * kKeys) {
        if (!all && !is_suspect(y, source, row, column)) {
          skipped = true;
          continue;
        }
        Scores s, dp = {};
        multiply_rows<kAlignedRepairs, features.dim_qk, kAhead>(s, {k(own(0)), k(own(1))}, q, row, lane);
        if (slopes) multiply_rows<kAlignedRepairs, features.dim_v, kAhead>(dp, {v(own(0)), v(own(1))}, dout, row, lane);
        const u32 seen = factors(s, dp, y, scores, row);
        if (!__any_sync(kAll, seen != 0)) continue;
        if constexpr (features.input == ScalarType::f16) fit(s, o, unit);
        flags |= multiply_columns<kAlignedRepairs, kDim>(o, s, seen, source, row, column, lane);
        if (all_right(bad, o, flags)) return;
      }
    }
  }
  // True if one of 32 rows may bring a NaN or an infinity to some element of the span.
  DEV bool is_suspect(const WorkTile& y, const TokenRows& source, i32 row, i32 column) const {
    bool found = false;
    if (row + lane < y.seq_q) {
      const RowStatistics of = statistics_at(p, y, row + lane);
      found = (!is_finite(of.reference) && of.reference != -kNegInf) || (slopes && !is_finite(of.d));
    }
    const bool special = has_special<kAlignedRepairs, kDim>(source, row, column, lane);  // its loads beside those above
    return __any_sync(kAll, found) || special;
  }
  // Products of pairs become factors, those of hidden pairs 0. Returns a bit for each pair that is seen.
  DEV u32 factors(Scores& s, const Scores& dp, const WorkTile& y, const HeadScores& scores, i32 first_row) const {
    const auto row = [&](i32 i) { return first_row + column_of(i / 2 * 4 + i % 2, lane % 4); };
    RowStatistics of[kKeys / 4];  // all loads at once
#pragma unroll
    for (i32 i = 0; i < kKeys / 4; ++i) of[i] = statistics_at(p, y, min(row(i), y.seq_q - 1));
    u32 seen = 0;
#pragma unroll
    for (i32 e = 0; e < kKeys / 2; ++e) {
      const i32 of_row = e / 4 * 2 + e % 2, key = own(e / 2 % 2);
      const bool visible = is_visible(y, scores, row(of_row), key);
      PairWeights pair;
      // A score_mod reads its buffers where pairs exist; without one a branch would make loads wait for each other.
      if (!features.score_mod || visible)
        pair = weights_of_pair(p, y, scores, row(of_row), key, s[e], dp[e], of[of_row]);
      const bool sees = visible && pair.seen;
      s[e] = !sees ? 0.0f : slopes ? pair.slope : pair.dropped;
      seen |= sees ? 1u << e : 0u;
    }
    return seen;
  }
};

}  // namespace onepass::fallback

namespace onepass {

// The sixteen keys of a mark (mark_keys); key: the first of them.
DEV KeyTile keys_of_mark(const BackwardParams& p, u32 mark) {
  constexpr u32 kOfBlock = kBlockK / 16;
  const u32 block = mark / kOfBlock, head = block / static_cast<u32>(p.k_blocks);
  const i32 within = static_cast<i32>(block - head * static_cast<u32>(p.k_blocks));
  KeyTile x;
  x.head = static_cast<i32>(head);
  x.batch = features.packed ? sequence_of<kBlockK>(p.cu_k, p.batch, within) : within / ceil_div(p.seq_k, kBlockK);
  x.map_batch = features.packed ? 0 : x.batch;
  x.q_begin = features.packed ? p.cu_q[x.batch] : 0;
  x.seq_q = features.packed ? p.cu_q[x.batch + 1] - x.q_begin : p.seq_q;
  x.k_begin = features.packed ? p.cu_k[x.batch] : 0;
  x.seq_k = features.packed ? p.cu_k[x.batch + 1] - x.k_begin : p.seq_k;
  x.key = (within - first_block<kBlockK>(p.cu_k, p.seq_k, x.batch)) * kBlockK + static_cast<i32>(mark % kOfBlock) * 16;
  return x;
}

// The parts of sixteen keys, a warp each: 64 columns of dK or of dV; of tensors of several types, a key.
constexpr i32 kSpansOfDk = backward_features.dk ? round_up(features.dim_qk, fallback::kSpan) / fallback::kSpan : 0,
              kSpansOfDv = backward_features.dv ? round_up(features.dim_v, fallback::kSpan) / fallback::kSpan : 0,
              kKeyParts = fallback::kRepairs || kSpansOfDk + kSpansOfDv == 0 ? kSpansOfDk + kSpansOfDv : 16;
DEV void repair_keys(const BackwardParams& p, const KeyTile& x, i32 part, const fallback::RepairTeam& team) {
  if constexpr (fallback::kRepairs) {
    const WorkTile rows = rows_of(x, x.head, 0);
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    const u32 keys = (x.key + lane / 4 < x.seq_k ? 0xffffu : 0u) | (x.key + lane / 4 + 8 < x.seq_k ? 0xffff0000u : 0u);
    const bool slopes = part < kSpansOfDk;
    const i32 column = (slopes ? part : part - kSpansOfDk) * fallback::kSpan;
    if constexpr (features.dim_qk == features.dim_v)  // one text for both
      fallback::KeyRepair<features.dim_qk>{
          p, rows, x.key, lane, team, slopes, slopes ? p.dk : p.dv, slopes ? p.dk_stride : p.dv_stride}
          .run(keys, column);
    else if (slopes)
      fallback::KeyRepair<features.dim_qk>{p, rows, x.key, lane, team, true, p.dk, p.dk_stride}.run(keys, column);
    else
      fallback::KeyRepair<features.dim_v>{p, rows, x.key, lane, team, false, p.dv, p.dv_stride}.run(keys, column);
  } else if (team.warp == 0 && x.key + part < x.seq_k) {
    fallback_key(p, x, x.key + part);
  }
}

// All keys that are marked, by the whole grid, in parts. If there are few, a CTA takes a part at a time, and the next
// one the next part of the same keys. Otherwise each warp takes one, and warps of a CTA take neighbouring keys, since
// those read the same rows.
template <i32 parts, i32 warps>  // of a CTA
DEV void repair_marked_keys(const BackwardParams& p, u32 memory) {
  const i32 warp = static_cast<i32>(threadIdx.x / 32);
  // In 32 bits: a part is 2 KB of a gradient.
  const u32 marks = static_cast<u32>(p.heads_kv * p.k_blocks) * (kBlockK / 16), all = marks * parts;
  const auto is_marked = [&](u32 mark) { return p.broken_keys[1 + mark] == static_cast<u32>(p.call); };
  fallback::RepairTeam team{memory, warp, warps};
  i32 own = 0, count = 0;
#pragma unroll 4
  for (u32 mark = threadIdx.x; mark < marks; mark += warps * 32) own += is_marked(mark);
  team.each_word(static_cast<u32>(warp_sum(own)), [&](u32 x) { count += static_cast<i32>(x); });
  const bool few = count * parts <= static_cast<i32>(gridDim.x);
  if (!few) team.warp = 0, team.warps = 1;
  const auto mark_of = [&](u32 at) { return few ? at / parts : at % marks; };
  const u32 step = few ? gridDim.x : gridDim.x * warps,
            begin = few ? blockIdx.x : blockIdx.x * warps + static_cast<u32>(warp);
#pragma unroll 1
  for (u32 first = begin; first < all; first += 32 * step) {  // a part for each lane, to look at
    const u32 ahead = first + static_cast<u32>(team.lane()) * step;
    u32 bits = __ballot_sync(fallback::kAll, ahead < all && is_marked(mark_of(ahead)));
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
      const u32 at = first + static_cast<u32>(__ffs(static_cast<int>(bits)) - 1) * step;
      const KeyTile x = keys_of_mark(p, mark_of(at));
      if (x.key < x.seq_k) repair_keys(p, x, static_cast<i32>(few ? at % parts : at / marks), team);
    }
  }
}

}  // namespace onepass
