// Sixteen rows once more by one warp, on tensor cores, a span of columns at a time.
//
// An element of the stored O that is not finite is right if its row sees a NaN or an infinity in its column of V. O is
// computed again, with zeros for the values that are not finite, until every element is known to be right so; at the
// latest with the last key. Then the others are stored: a hidden value had reached them, or an overflow.
//
// Rows: the sixteen rows. kPackedMask: scores(i) has mask_row(); lane: of the warp; row(i), head(i), exists(i): of this
// lane's rows g and g + 8 (lane = 4 g + t); query(i): the address of its q; scores(i): its HeadScores; keys(): those
// that any row sees; tile(i): the WorkTile of its head; drop(first): the dropout of a fragment.
#pragma once
#include "algebra/nonfinite.hpp"
#include "cuda/attention/epilogue.cuh"
#include "cuda/attention/fallback/products.cuh"

namespace onepass::fallback {

// A lane's scores: elements 4 n + 2 i and + 1 are row i's.
template <class F>
DEV void each_score(i32 row, const F& f) {
#pragma unroll
  for (i32 e = 2 * row; e < kKeys / 2; e += 4) f(e), f(e + 1);
}

// 2^-32: sums of weights times the largest finite values of bf16 or fp32 stay finite. fp16 needs none, and has no room.
constexpr float kWeightUnit = features.input == ScalarType::f16 ? 1.0f : 2.3283064365386963e-10f;

// A bit for each score of this lane: the band and the masks show it.
template <class Rows>
DEV u32 shown(const Rows& rows, i32 first) {
  u32 bits = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const auto& scores = rows.scores(i);
    const Band32::Range keys = scores.band.keys_of(rows.row(i));
    TreeRow<i32> tree;
    if constexpr (features.tree) tree = scores.tree_row(rows.row(i));
    u32 word = ~0u;  // of the packed mask
    if constexpr (features.bool_mask && Rows::kPackedMask) word = scores.mask_row(rows.row(i))[first / kKeys];
    each_score(i, [&](i32 e) {
      const i32 column = column_of(e, rows.lane % 4), key = first + column;
      bool seen = rows.exists(i) && key >= keys.lo && key < keys.hi && (word >> column & 1) != 0;
      if constexpr (features.mask_mod || !Rows::kPackedMask) seen = seen && !scores.masked(rows.row(i), key);
      if constexpr (features.tree) seen = seen && tree.sees(key);
      bits |= seen ? 1u << e : 0u;
    });
  }
  return bits;
}

// The scores of 32 keys, -inf where a row does not see one. Returns `seen` less those.
template <bool kAligned, i32 kAhead, class Rows>
DEV u32 score(Scores& s, const Rows& rows, const KeyRows& k, i32 first, u32 seen) {
  u32 finite = 0;
  multiply_rows<kAligned, features.dim_qk, kAhead>(s, {rows.query(0), rows.query(1)}, k, first, rows.lane);
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const auto& scores = rows.scores(i);
    const i32 row = rows.row(i);
    each_score(i, [&](i32 e) {
      const i32 key = first + column_of(e, rows.lane % 4);
      s[e] = seen >> e & 1 ? scores.score(s[e], scores.bias_at(row, key), row, key) : kNegInf;
      finite |= s[e] != kNegInf ? 1u << e : 0u;
    });
  }
  return finite;
}

// The end of a row, from its whole sums: what O is multiplied with, and its LSE.
struct RowFactor {
  float factor, lse;
};
template <class Rows>
DEV RowFactor finish(const Rows& rows, i32 i, RowState<float> state, float norm) {
  const ForwardParams& p = rows.p;
  const auto unit = unit_of(p);
  state = to_natural(state, unit.factor, unit.unit);
  float share = 1.0f;  // of the keys, beside the sink
  if constexpr (forward_features.sinks) {
    const Merged<float> joined = join_natural_sink(state, p.sinks[rows.head(i) * p.sink_stride]);
    share = state.l * joined.alpha_a * finalize_natural(joined.state).inv_l;
    state = joined.state;
  }
  float factor = norm == 0.0f ? 0.0f : share * inverse(norm);
  if constexpr (features.dropout) factor *= p.dropout.keep_scale;
  return {factor, finalize_natural(state).lse};
}

// Scores in a unit of their own, for EntropyTerms.
struct ScoreUnit {
  float factor;
  DEV float moved_terms(float t, float l, float m_before, const Step<float>& r) const {
    return onepass::moved_terms(t, l, m_before, factor, r);
  }
};
// Some keys' part of the rows, by one warp.
struct Sums : EntropyTerms<forward_features.entropy> {
  Output o = {};
  u32 flags = 0;  // elements that see a value that is not finite
  RowState<float> state[2];
  float norm[2] = {0.0f, 0.0f};  // sums of the weights as they are multiplied: O is a mean of V, and never larger

  // 32 keys, of which `seen` are shown. Returns the elements that see the first such value here. Without scores, that
  // is all: each of `seen` is a pair.
  template <bool kAligned, class Room, class Rows, class Format = Element>
  DEV u32 add(const Rows& rows, const KeyRows& k, const KeyRows& v, i32 first, u32 seen, i32 column,
              bool scores = true) {
    ValuesAhead<kAligned, features.dim_v, Room::kValues> values;
    values.load(v, first, column, rows.lane);
    Scores s = {};
    if (scores) {
      seen = score<kAligned, Room::kAhead>(s, rows, k, first, seen);
      weigh<Format>(s, rows, first, unit_of(rows.p).factor);
    }
    const u32 more =
        multiply_columns<kAligned, features.dim_v>(o, s, seen, v, first, column, rows.lane, values) & ~flags;
    flags |= more;
    return more;
  }

 private:
  // Scores become weights.
  template <class Format, class Rows>
  DEV void weigh(Scores& s, const Rows& rows, i32 first, float unit) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      float most = kNegInf, sum = 0.0f, rounded = 0.0f;
      each_score(i, [&](i32 e) { most = fmaxf(most, s[e]); });
      [[maybe_unused]] const float before = state[i].m;
      const Step<float> step = advance(state[i], quad_max(most), unit);
      this->move_terms(i, state[i].l, before, ScoreUnit{unit}, step);
      SafeTerms more;
      each_score(i, [&](i32 e) {
        const float exponent = log2_weight(s[e], unit, step), w = factor_of(exponent);
        sum += w;
        more.add(i, w, exponent);
        s[e] = w * kWeightUnit;
        rounded += Format::unpack(Format::round(s[e]));
      });
      absorb(state[i], sum);
      this->add_terms(more);
      norm[i] = norm[i] * step.alpha + rounded;
#pragma unroll
      for (i32 c = 0; c < 16; ++c) o[output_at(i, c)] *= step.alpha;
    }
    const auto drop = rows.drop(first);
#pragma unroll
    for (i32 e = 0; e < kKeys / 2; e += 4) {
      float four[4] = {s[e], s[e + 1], s[e + 2], s[e + 3]};
      drop(e, four);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) s[e + i] = four[i];
    }
  }
};

// The elements of `bad`, and the LSEs, maxima and entropies if lses(i).
template <class Rows, class Lses>
DEV void store(u32 bad, const Rows& rows, const Sums& sums, i32 column, const Lses& lses) {
  const ForwardParams& p = rows.p;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const RowFactor end = finish(rows, i, sums.state[i], sums.norm[i]);
    [[maybe_unused]] const float of_keys = sums.quad_entropy(i, sums.state[i].l);
    if (!rows.exists(i)) continue;
    const WorkTile x = rows.tile(i);
    if (lses(i) && rows.lane % 4 == 0) {
      write_lse(p, x, rows.row(i), end.lse);
      const auto natural = [&] {
        const auto unit = unit_of(p);
        return to_natural(sums.state[i], unit.factor, unit.unit);
      };
      if constexpr (forward_features.row_max) write_row_max(p, x, rows.row(i), largest_score(natural()));
      if constexpr (forward_features.entropy)
        write_entropy(p, x, rows.row(i), entropy_with_sink(p, rows.head(i), natural(), of_keys));
    }
    const i64 out = out_offset(p, x, rows.row(i)) + column + 16 * (rows.lane % 4);
#pragma unroll
    for (i32 c = 0; c < 16; ++c) {
      if ((bad & bit_at(i, c)) == 0) continue;
      const float value = sums.o[output_at(i, c)] * end.factor;
      write_out(p, out + c, (sums.flags & bit_at(i, c)) != 0 ? __int_as_float(0x7fffffff) : value);
    }
  }
}

// The elements of `bad` once more. wrong: all are stored, and the LSEs.
template <bool kAligned, class Room, class Rows>
DEV void recompute(u32 bad, const Rows& rows, const KeyRows& k, const KeyRows& v, i32 column, bool wrong) {
  const Band32::Range keys = rows.keys();
  Sums sums;
#pragma unroll 1
  for (i32 first = keys.lo / kKeys * kKeys; first < keys.hi; first += kKeys) {
    const u32 seen = shown(rows, first);
    if (!__any_sync(kAll, seen != 0)) continue;
    const u32 more = sums.add<kAligned, Room>(rows, k, v, first, seen, column);
    if (!wrong && __any_sync(kAll, more != 0) && !__any_sync(kAll, (bad & ~sums.flags) != 0)) return;
  }
#pragma unroll
  for (i32 i = 0; i < 2; ++i) sums.state[i].l = quad_sum(sums.state[i].l), sums.norm[i] = quad_sum(sums.norm[i]);
  store(bad, rows, sums, column, [&](i32) { return wrong; });
}

// The elements of a span of O that exist.
template <class Rows>
DEV u32 existing_elements(const Rows& rows, i32 column) {
  const i32 columns = max(min(features.dim_v - column - rows.lane % 4 * 16, 16), 0);
  u32 existing = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) existing |= rows.exists(i) ? ((1u << columns) - 1) << 16 * i : 0u;
  return existing;
}
// Those that are not finite as they are stored.
template <class Rows>
DEV u32 look(const Rows& rows, i32 column) {
  using Format = typename ElementOf<forward_features.output>::Format;
  const i32 from = column + rows.lane % 4 * 16, columns = min(features.dim_v - from, 16);
  u32 bad = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const auto* const at = static_cast<const volatile typename Format::Raw*>(rows.p.out) +
                           out_offset(rows.p, rows.tile(i), rows.row(i)) + from;
#pragma unroll kHalves ? 4 : 8
    for (i32 c = 0; c < 16; ++c) {
      const float x = rows.exists(i) && c < columns ? Format::unpack(at[c]) : 0.0f;
      bad |= is_finite(x) ? 0u : bit_at(i, c);
    }
  }
  return bad;
}

// of: a bit for each of this lane's rows. Returns those of rows that see a key.
template <class Rows>
DEV u32 rows_with_keys(const Rows& rows, u32 of) {
  const Band32::Range keys = rows.keys();
  u32 some = 0;
#pragma unroll 1
  for (i32 first = keys.lo / kKeys * kKeys; first < keys.hi; first += kKeys) {
    const u32 bits = shown(rows, first);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const u32 quad = __ballot_sync(kAll, (bits & 0x3333u << 2 * i) != 0) >> rows.lane / 4 * 4 & 0xf;
      some |= quad != 0 ? 1u << i : 0u;
    }
    if (!__any_sync(kAll, (of & ~some) != 0)) break;
  }
  return of & some;
}

// The elements of rows that are to be looked at. Products of fp32's parts make NaN of an infinity, so its rows are all
// wrong where their state is NaN. With a NaN in q that is right, and the row is NaN as it stands, if it sees a key.
template <bool kAligned, class Rows>
DEV u32 elements_of(const Rows& rows) {
  if constexpr (kHalves || features.score_mod) return ~0u;
  u32 lost = 0;  // a bit for each row with a NaN in q
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    bool found = false;
    const char* const query = rows.query(i);
#pragma unroll 8
    for (i32 first = 0; first < features.dim_qk; first += 4 * kPiece) {
      const Piece x = piece_of<kAligned, features.dim_qk>(query, first + rows.lane % 4 * kPiece);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) found = found || (x.word[e] & 0x7fffffff) > 0x7f800000;
    }
    const u32 quad = __ballot_sync(kAll, found) >> rows.lane / 4 * 4 & 0xf;
    lost |= quad != 0 ? 1u << i : 0u;
  }
  if (__any_sync(kAll, lost != 0)) lost = rows_with_keys(rows, lost);
  return (lost & 1 ? 0u : 0xffffu) | (lost & 2 ? 0u : 0xffff0000u);
}

}  // namespace onepass::fallback
