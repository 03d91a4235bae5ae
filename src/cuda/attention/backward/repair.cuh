// Sixteen rows of dK or dV that are not finite, once more by one warp, on tensor cores: 64 columns at a time.
//
// Only visible pairs have a part here. Elements of q or dO that are not finite enter the product as zeros, and flags
// say which elements see one. The first pass takes only blocks of rows in which a NaN or an infinity is likely to be.
// It ends once all elements that were not finite are known to be right. Otherwise a second one takes all blocks.
#pragma once
#include "cuda/attention/backward/fallback.cuh"
#include "cuda/attention/fallback/products.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::fallback {

// fp32 has no registers for this, and dO must have the type of q.
constexpr bool kRepairs = kHalves && forward_features.output == features.input;
constexpr bool kAlignedRepairs = backward_shape.row_bytes == 16;

// Rows of a head of a tensor, from a sequence's first token on.
struct TokenRows {
  const char* base;
  i64 bytes;  // from row to row
  i32 end;
  DEV const char* operator()(i32 row) const { return row < end ? base + row * bytes : nullptr; }
};
DEV TokenRows token_rows(const void* base, const long long (&stride)[3], i32 batch, i32 head, i32 first, i32 count) {
  return {static_cast<const char*>(base) + token_offset(stride, batch, head, first) * kElementBytes,
          stride[2] * kElementBytes, count};
}

// Keys first .. first + 15 of dK (slopes) or of dV, of kDim columns. Lane 4 g + t has keys g and g + 8. x: their head
// and sequence.
template <i32 kDim>
struct KeyRepair {
  const BackwardParams& p;
  const WorkTile& x;
  const i32 first, lane;
  const bool slopes;
  void* const to;
  const long long (&stride)[3];
  static constexpr i32 kAhead = 2;

  DEV i32 own(i32 i) const { return first + lane / 4 + 8 * i; }
  DEV i64 place(i32 i) const { return token_offset(stride, x.map_batch, x.head, x.k_begin + own(i)) + lane % 4 * 16; }

  DEV void run(u32 rows) const {
#pragma unroll 1
    for (i32 column = 0; column < kDim; column += kSpan) {
      const u32 bad = look(rows, column);
      if (!__any_sync(kAll, bad != 0)) continue;
#pragma unroll 1
      for (bool all = false;; all = true) {
        Output o = {};
        u32 flags = 0;
        float unit = 1.0f;
        if (add(o, flags, unit, bad, column, all)) break;
        if (!all) continue;
        store(o, flags, unit, bad, column);
        break;
      }
    }
  }

 private:
  // Elements that are not finite.
  DEV u32 look(u32 rows, i32 column) const {
    using Format = typename ElementOf<backward_features.gradients>::Format;
    const i32 from = column + lane % 4 * 16;
    u32 bad = 0;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      if ((rows & bit_at(i, 0)) == 0) continue;
      const auto* const at = static_cast<const volatile typename Format::Raw*>(to) + place(i) + column;
#pragma unroll 4
      for (i32 c = 0; c < 16; ++c) bad |= from + c < kDim && !is_finite(Format::unpack(at[c])) ? bit_at(i, c) : 0u;
    }
    return bad;
  }
  DEV void store(const Output& o, u32 flags, float unit, u32 bad, i32 column) const {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
#pragma unroll
      for (i32 c = 0; c < 16; ++c) {
        if ((bad & bit_at(i, c)) == 0) continue;
        const float value = o[output_at(i, c)] * unit;
        write_gradient(to, place(i) + column + c, (flags & bit_at(i, c)) != 0 ? __int_as_float(0x7fffffff) : value);
      }
    }
  }
  // The sums of a span. Without `all` true once all of `bad` are right as they stand.
  DEV bool add(Output& o, u32& flags, float& unit, u32 bad, i32 column, bool all) const {
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
      for (i32 row = rows.lo / kKeys * kKeys; row < rows.hi; row += kKeys) {
        if (!all && !is_suspect(y, source, row, column)) continue;
        Scores s, dp = {};
        multiply_rows<kAlignedRepairs, features.dim_qk, kAhead>(s, {k(own(0)), k(own(1))}, q, row, lane);
        if (slopes) multiply_rows<kAlignedRepairs, features.dim_v, kAhead>(dp, {v(own(0)), v(own(1))}, dout, row, lane);
        const u32 seen = factors(s, dp, y, scores, row);
        if (!__any_sync(kAll, seen != 0)) continue;
        if constexpr (features.input == ScalarType::f16) fit(s, o, unit);
        flags |= multiply_columns<kAlignedRepairs, kDim>(o, s, seen, source, row, column, lane);
        if (!all && !__any_sync(kAll, (bad & ~flags & ~lost(o)) != 0)) return true;
      }
    }
    return false;
  }
  // True if one of 32 rows may bring a NaN or an infinity to some element of the span.
  DEV bool is_suspect(const WorkTile& y, const TokenRows& source, i32 row, i32 column) const {
    bool found = false;
    if (row + lane < y.seq_q) {
      const RowStatistics of = statistics_at(p, y, row + lane);
      found = (!is_finite(of.reference) && of.reference != -kNegInf) || (slopes && !is_finite(of.d));
    }
    return __any_sync(kAll, found) || has_special<kAlignedRepairs, kDim>(source, row, column, lane);
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
  // A bit for each sum that is not finite. What its row sees is the cause.
  static DEV u32 lost(const Output& o) {
    u32 bits = 0;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
#pragma unroll
      for (i32 c = 0; c < 16; ++c) bits |= is_finite(o[output_at(i, c)]) ? 0u : bit_at(i, c);
    }
    return bits;
  }
  // Factors in a unit in which fp16 has room for them, and the sums, too.
  static DEV void fit(Scores& s, Output& o, float& unit) {
    float most = 0.0f;
#pragma unroll
    for (const float x : s) most = fmaxf(most, finite_or_zero(fabsf(x)));
    most = warp_max(most);
    if (most > unit * 16384.0f) {
      const float grown = most / 256.0f, by = unit / grown;
      unit = grown;
#pragma unroll
      for (float& x : o) x *= by;
    }
    const float inverse = 1.0f / unit;
#pragma unroll
    for (float& x : s) x *= inverse;
  }
};

}  // namespace onepass::fallback

namespace onepass {

// Keys first .. first + 15 of dK and dV.
DEV void repair_keys(const BackwardParams& p, const KeyTile& tile, i32 first, i32 lane) {
  if constexpr (fallback::kRepairs) {
    const WorkTile x = rows_of(tile, tile.head, 0);
    const u32 keys = (first + lane / 4 < x.seq_k ? 0xffffu : 0u) | (first + lane / 4 + 8 < x.seq_k ? 0xffff0000u : 0u);
    constexpr bool kDk = backward_features.dk, kDv = backward_features.dv;
    if constexpr (kDk && kDv && features.dim_qk == features.dim_v) {  // one text for both
#pragma unroll 1
      for (u32 turn = 0; turn < 2; ++turn) {
        const bool slopes = turn == 0;
        fallback::KeyRepair<features.dim_qk>{
            p, x, first, lane, slopes, slopes ? p.dk : p.dv, slopes ? p.dk_stride : p.dv_stride}
            .run(keys);
      }
    } else {
      if constexpr (kDk) fallback::KeyRepair<features.dim_qk>{p, x, first, lane, true, p.dk, p.dk_stride}.run(keys);
      if constexpr (kDv) fallback::KeyRepair<features.dim_v>{p, x, first, lane, false, p.dv, p.dv_stride}.run(keys);
    }
  } else {
#pragma unroll 1
    for (i32 key = first; key < min(first + 16, tile.seq_k); ++key) fallback_key(p, tile, key);
  }
}

// Every sixteen keys that a warp has remembered (FallbackEntry: head of K and V, first key). chain(): the address in
// shared memory of the last one's place. The rest of the chain stays there, so the repair has a register more.
// thread(): threadIdx.x, or opaque_thread() where a kernel has no register for it.
template <class Chain, class Thread>
DEV void run_key_fallback(const BackwardParams& p, const Chain& chain, const Thread& thread) {
#pragma unroll 1
  for (;;) {
    const i32 at = load_word(chain());
    if (at < 0) return;
    const FallbackEntry e = p.fallback[at];
    __syncwarp();
    store_word(chain(), e.before);
    __syncwarp();
    KeyTile x;
    x.batch = e.batch, x.head = e.head, x.map_batch = features.packed ? 0 : e.batch;
    x.q_begin = features.packed ? p.cu_q[e.batch] : 0;
    x.seq_q = features.packed ? p.cu_q[e.batch + 1] - x.q_begin : p.seq_q;
    x.k_begin = features.packed ? p.cu_k[e.batch] : 0;
    x.seq_k = features.packed ? p.cu_k[e.batch + 1] - x.k_begin : p.seq_k;
    repair_keys(p, x, e.row, static_cast<i32>(thread() % 32));
  }
}

}  // namespace onepass
