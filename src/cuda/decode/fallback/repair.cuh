// Rows whose result is not finite, once more by all warps of a CTA: sixteen at a time, 64 columns of O, the keys
// shared.
//
// An element that is not finite is right if its row sees a NaN or an infinity in its column of V. So V alone is looked
// through first. Beside values that are not finite, scores are computed if some may be -inf and hide a pair that the
// masks show. Once all elements of the span are known to be right, the warps go on to the next. Else O is computed
// again, with zeros for those values.
#pragma once
#include "cuda/attention/fallback/block.cuh"
#include "cuda/attention/fallback/look_through.cuh"
#include "cuda/attention/fallback/row.cuh"
#include "cuda/decode/packed_rows.cuh"

namespace onepass::decode {

// The state of a row that has ended.
enum RowFlag : i32 {
  kRight = 0,
  kNotFinite = 1,  // some elements of O
  kWrong = 2,      // the row's state
};

struct RepairRoom : fallback::LittleRoom {
  static constexpr i32 kPieces = 8;
};
// The type of their products. Rows with e4m3 keys are computed one by one, so a q of e4m3 has none.
using RepairFormat = ElementOf<features.input == ScalarType::e4m3 ? ScalarType::f16 : features.input>::Format;

// Scores of fp32 take 32 trips to memory. A look at q and K, which says that no pair is hidden by its score, takes 4
// for a block. Other types and wider heads have no registers for it.
constexpr bool kLooksAtKeys =
    !fallback::kHalves && !fallback::kScoresHide && features.dim_qk <= 128 && features.dim_v <= 128;

// Sixteen packed rows, as the fallback asks for them.
struct RepairedRows {
  static constexpr bool kPackedMask = false;
  const DecodeParams& p;
  const Group& group;
  i32 first, lane;
  PackedRow own[2];

  DEV RepairedRows(const DecodeParams& params, const Group& g, i32 first_row, i32 own_lane)
      : p(params), group(g), first(first_row), lane(own_lane) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) own[i] = PackedRow::of(p, group, number(i));
  }
  DEV i32 number(i32 i) const { return first + 8 * i + lane / 4; }
  DEV i32 row(i32 i) const { return own[i].token; }
  DEV i32 head(i32 i) const { return own[i].head; }
  DEV bool exists(i32 i) const { return number(i) < group.rows(p); }
  DEV WorkTile tile(i32 i) const { return group.work_tile(own[i].head); }
  DEV RowScores scores(i32 i) const { return RowScores(p, group, own[i]); }
  DEV Band32::Range keys() const { return band_of(p, group.seq_q, group.seq_k).key_range(0, group.seq_q); }
  DEV const char* query(i32 i) const { return exists(i) ? query_of(own[i]) : nullptr; }
  DEV const char* query_of(const PackedRow& of) const {
    const WorkTile x = group.work_tile(of.head);
    const i64 at =
        x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + static_cast<i64>(x.q_begin + of.token) * p.q_stride[2];
    return static_cast<const char*>(p.q) + at * bytes_of(features.input);
  }
  // True if pairs that the masks show may have a score of -inf because of q.
  DEV bool may_hide() const {
    if constexpr (!kLooksAtKeys) return true;
    const auto query = [&](i32 i) {
      return first + i < group.rows(p) ? query_of(PackedRow::of(p, group, first + i)) : nullptr;
    };
    return fallback::has_wild<kAlignedRows, 16, RepairRoom>(query, lane);
  }
  DEV auto drop(i32 key) const {
    if constexpr (features.dropout)
      return DropPacked{p.dropout, static_cast<u32>(group.batch), static_cast<u32>(key), own[lane % 2]};
    else
      return KeepAll{};
  }
};

// Messages between the warps, in shared memory: repair_bytes of it.
struct RepairMemory {
  u32 at;
  DEV u32 flags(i32 warp, i32 lane) const { return at + static_cast<u32>(warp * 32 + lane) * 4; }
  DEV u32 state(i32 warp, i32 row) const { return at + kWarps * 128 + static_cast<u32>(warp * 16 + row) * 16; }
  DEV u32 output(i32 element, i32 lane) const { return at + kWarps * 384 + static_cast<u32>(element * 32 + lane) * 4; }
  DEV u32 all_flags(i32 lane) const {
    u32 all = 0;
#pragma unroll
    for (i32 warp = 0; warp < kWarps; ++warp) all |= static_cast<u32>(load_word(flags(warp, lane)));
    return all;
  }
};

// A span of columns of sixteen rows.
struct Repair {
  const RepairMemory memory;
  const RepairedRows& rows;
  const fallback::KeyRows &k, &v;
  const i32 column;
  const bool by_scores;  // RepairedRows::may_hide
  fallback::WildBlocks<(fallback::kSpans > 1)>& blocks;

  // The elements of `bad`, and the LSEs of rows that are wrong. Looks for what explains the elements first, then
  // computes them.
  DEV void run(u32 bad, u32 wrong) const {
    const i32 lane = rows.lane;
#pragma unroll 1
    for (bool all = __any_sync(fallback::kAll, wrong != 0);; all = true) {
      fallback::Sums sums;
      add(sums, bad, all);
      const u32 found = memory.all_flags(lane);
      all_sync();
      if (!all && !__any_sync(fallback::kAll, (bad & ~found) != 0)) return;
      if (!all) continue;
      sums.flags = found;
      join(sums);
      if (own_warp() == kRepairWarps - 1)
        fallback::store(bad, rows, sums, column, [&](i32 i) { return (wrong & fallback::bit_at(i, 0)) != 0; });
      all_sync();
      return;
    }
  }

 private:
  // This warp's blocks of keys; without `all` those that have a value that is not finite, until all of `bad` see one.
  DEV void add(fallback::Sums& sums, u32 bad, bool all) const {
    constexpr i32 kKeys = fallback::kKeys;
    const u32 own = memory.flags(own_warp(), rows.lane);
    const Band32::Range keys = rows.keys();
    store_word(own, 0);
    all_sync();
#pragma unroll 1
    for (i32 first = (first_block(keys.lo / kKeys) + own_warp()) * kKeys; first < end_of(keys);
         first += kRepairWarps * kKeys) {
      if (!all) {
        if (!__any_sync(fallback::kAll, (bad & ~memory.all_flags(rows.lane)) != 0)) break;
        if (!fallback::has_special<kAlignedRows, features.dim_v>(v, first, column, rows.lane)) continue;
      }
      const u32 seen = fallback::shown(rows, first);
      if (!__any_sync(fallback::kAll, seen != 0)) continue;
      sums.add<kAlignedRows, RepairRoom, RepairedRows, RepairFormat>(rows, k, v, first, seen, column,
                                                                     all || by_scores || has_wild_keys(first));
      store_word(own, static_cast<i32>(sums.flags));
    }
    all_sync();
  }
  // The first warp's first block of keys, where `block` is the first that a row sees.
  static DEV i32 first_block(i32 block) { return kChained ? block / kRepairWarps * kRepairWarps : block; }
  static DEV i32 end_of(const Band32::Range& keys) {
    if constexpr (kRepairWarps == kWarps) return keys.hi;
    return own_warp() < kRepairWarps ? keys.hi : 0;
  }
  // True if a score of these 32 keys may be -inf.
  DEV bool has_wild_keys(i32 first) const {
    if constexpr (!kLooksAtKeys) return true;
    const auto key = [&](i32 i) { return k(first + i); };
    const i32 turn = (first / fallback::kKeys - first_block(rows.keys().lo / fallback::kKeys)) / kRepairWarps;
    blocks.at = turn < 32 ? 1u << turn : 0u;
    return blocks.ask([&] { return fallback::has_wild<kAlignedRows, fallback::kKeys, RepairRoom>(key, rows.lane); });
  }
  // The sums of all warps, in the last of them.
  DEV void join(fallback::Sums& sums) const {
    const i32 lane = rows.lane;
    const float unit = unit_of(rows.p).factor;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const float l = quad_sum(sums.state[i].l), norm = quad_sum(sums.norm[i]), terms = sums.quad_terms(i);
      if (lane % 4 == 0)
        store_four(memory.state(own_warp(), lane / 4 + 8 * i), __float_as_uint(sums.state[i].m), __float_as_uint(l),
                   __float_as_uint(norm), __float_as_uint(terms));
    }
    all_sync();
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const float own = sums.state[i].m;
      float most = kNegInf;
#pragma unroll 1
      for (i32 warp = 0; warp < kRepairWarps; ++warp)
        most = fmaxf(most, load_one(memory.state(warp, lane / 4 + 8 * i)));
      const Step<float> step = refer_to(most, unit);
      sums.state[i] = {most, 0.0f};
      sums.norm[i] = 0.0f;
      [[maybe_unused]] float whole = 0.0f;
#pragma unroll 1
      for (i32 warp = 0; warp < kRepairWarps; ++warp) {
        u32 m, l, norm, terms;
        load_four(memory.state(warp, lane / 4 + 8 * i), m, l, norm, terms);
        const float alpha = moved(__uint_as_float(m), unit, step);
        if constexpr (forward_features.entropy)
          whole += terms_of_part(fallback::ScoreUnit{unit}, step, __uint_as_float(m), __uint_as_float(l),
                                 __uint_as_float(terms), alpha);
        sums.state[i].l += __uint_as_float(l) * alpha;
        sums.norm[i] += __uint_as_float(norm) * alpha;
      }
      sums.set_terms(i, lane % 4 == 0 ? whole : 0.0f);
      const float alpha = moved(own, unit, step);
#pragma unroll
      for (i32 c = 0; c < 16; ++c) sums.o[fallback::output_at(i, c)] *= alpha;
    }
#pragma unroll 1
    for (i32 warp = 0; warp < kRepairWarps; ++warp) {
      if (own_warp() == warp) {
#pragma unroll
        for (i32 e = 0; e < 32; ++e) {
          if (warp != 0) sums.o[e] += load_one(memory.output(e, lane));
          store_word(memory.output(e, lane), __float_as_int(sums.o[e]));
        }
      }
      all_sync();
    }
  }
};

// The rows of a group whose flag is up, by all threads; flags: a RowFlag for each row.
DEV void repair_rows(u32 memory, u32 flags, const DecodeParams& p, const Group& g) {
  const i32 lane = static_cast<i32>(opaque_thread() % 32), count = g.rows(p);
  bool some = false;
  for (i32 row = lane; row < count; row += 32) some = some || load_word(flags + 4 * row) != kRight;
  if (!__any_sync(fallback::kAll, some)) return;
#pragma unroll 1
  for (i32 first = 0; first < count; first += 16) {
    const RepairedRows rows(p, g, first, lane);
    u32 flagged = 0, wrong = 0;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 flag = rows.exists(i) ? load_word(flags + 4 * rows.number(i)) : kRight;
      flagged |= flag != kRight ? 0xffffu << 16 * i : 0;
      wrong |= flag == kWrong ? 0xffffu << 16 * i : 0;
    }
    if (!__any_sync(fallback::kAll, flagged != 0)) continue;
    flagged &= fallback::elements_of<kAlignedRows>(rows), wrong &= flagged;
    const bool by_scores = rows.may_hide();
    fallback::WildBlocks<(fallback::kSpans > 1)> blocks;
    const KeyValueView view = KeyValueView::of_head(g.work_tile(0), g.kv_head(p));
    const fallback::KeyRows k{p, view, p.k, p.k_stride, rows.keys().hi}, v{p, view, p.v, p.v_stride, rows.keys().hi};
#pragma unroll 1
    for (i32 column = 0; column < features.dim_v; column += fallback::kSpan) {
      const u32 bad = flagged & (fallback::look(rows, column) | (wrong & fallback::existing_elements(rows, column)));
      if (!__any_sync(fallback::kAll, bad != 0)) continue;
      Repair{{memory}, rows, k, v, column, by_scores, blocks}.run(bad, wrong);
    }
  }
}

}  // namespace onepass::decode
