// A row's states over parts of its keys, on their way through the workspace, and the rows that come out. Every sum is
// made in one order, so results are the same each time.
#pragma once
#include "cuda/decode/fallback/repair.cuh"
#include "cuda/decode/unified.cuh"
#include "cuda/device/order.cuh"

namespace onepass::decode {

struct Sums {  // of a row, over some keys: what its O is worth
  RowState<float> state;
  float norm;            // see LaneRows
  float most = kNegInf;  // the row's largest score, natural, where it is asked for
  float terms = 0.0f;    // see EntropyTerms; where an entropy is asked for

  DEV void see(float score) {  // of other keys
    if constexpr (forward_features.row_max) most = fmaxf(most, score);
  }
};
// All but the terms.
DEV void store_sums(u32 to, const Sums& s) {
  store_four(to, __float_as_uint(s.state.m), __float_as_uint(s.state.l), __float_as_uint(s.norm),
             forward_features.row_max ? __float_as_uint(s.most) : 0);
}
DEV Sums load_sums(u32 from) {
  u32 m, l, norm, most;
  load_four(from, m, l, norm, most);
  return {{__uint_as_float(m), __uint_as_float(l)}, __uint_as_float(norm), __uint_as_float(most)};
}

// With one result, states become one in the order of their keys, one at a time: teams' and pieces', in registers,
// shared memory or the workspace. Every operation is rounded alike everywhere.
struct Joint {  // the factors of what is there, and of what comes
  float alpha, weight;
  DEV float operator()(float there, float comes) const { return add(there, __fmul_rn(comes, weight)); }
  DEV float add(float there, float weighed) const { return __fmaf_rn(there, alpha, weighed); }
};
template <class Unit>
DEV Joint join(const Unit& unit, Sums& all, const Sums& one) {
  [[maybe_unused]] const float before = all.state.m;
  const auto reference = unit.meet(all.state, one.state.m);
  const Joint joint{reference.alpha, unit.part_weight(one.state.m, reference)};
  if constexpr (forward_features.entropy) {
    all.terms = unit.moved_terms(all.terms, all.state.l, before, reference);
    all.terms += terms_of_part(unit, reference, one.state.m, one.state.l, one.terms, joint.weight);
  }
  all.state.l = __fmaf_rn(one.state.l, joint.weight, all.state.l);
  all.norm = joint(all.norm, one.norm);
  all.see(one.most);
  return joint;
}

// Partial results: a slot for each segment of a group that several segments make up.
struct Partials {
  const DecodeParams& p;
  static constexpr i32 kPitch = partial_pitch(features.dim_v);

  DEV float* sums(i32 slot, i32 row) const { return slot_at(slot) + 4 * row; }
  DEV float* output(i32 slot, i32 row) const { return slot_at(slot) + 4 * kRows + row * kPitch; }
  DEV float* terms(i32 slot, i32 row) const { return slot_at(slot) + kRows * (4 + kPitch) + row; }
  // A block has at most two such segments: its first and its last. Pieces are numbered group by group.
  DEV i32 slot_of(const Segment& s) const {
    if constexpr (kOneSegment) return static_cast<i32>(blockIdx.x);
    if constexpr (kOwnBlocks) return static_cast<i32>(blockIdx.x) * p.steps + s.step - s.group.step;
    if (kPieceSteps > 1)
      return (s.group.number * p.pieces + (s.step - s.group.step) / kPieceSteps) * blocks_co_scheduled(p) +
             own_member(p);
    if (config.piece != 0) return s.step * blocks_co_scheduled(p) + own_member(p);
    return 2 * static_cast<i32>(blockIdx.x) + (s.step == s.group.step);
  }

 private:
  DEV float* slot_at(i32 slot) const {
    return p.partials + static_cast<i64>(slot) * partial_floats(kRows, features.dim_v, forward_features.entropy);
  }
};

// Those of one group: a division for all of them.
struct Parts {
  const Partials partials;
  const i32 count, first;  // first: piece or block

  DEV Parts(const DecodeParams& p, const Line& line, const Group& g)
      : partials{p},
        count(config.piece != 0 ? g.pieces() : line.blocks_of(g)),
        first(kPieceSteps > 1     ? g.number * p.pieces
              : config.piece != 0 ? g.step
                                  : line.first_block(g)) {}
  DEV i32 near(i32 part) const { return min(part, count - 1); }
  DEV bool has(i32 part) const { return part < count; }
  DEV i32 slot(i32 part) const {
    if constexpr (kOwnBlocks) return static_cast<i32>(blockIdx.x) * partials.p.steps + part;
    const i32 at = (first + part) * blocks_co_scheduled(partials.p) + own_member(partials.p);
    return config.piece != 0 || kOneSegment ? at : 2 * at + (part == 0);
  }
};

// A row on its way out. What is not finite is remembered by its row's flag.
struct RowEnd {
  const DecodeParams& p;
  const Group& group;
  PackedRow row;
  FinalRow end;
  bool lost, right, served = true;  // lost: is_rightly_lost
  float row_max = kNegInf, entropy = 0.0f;

  DEV RowEnd(const DecodeParams& params, const Group& g, i32 number, const Sums& s)
      : p(params),
        group(g),
        row(PackedRow::of(params, g, number)),
        end(finalize_row(params, row.head, s.state, s.norm)),
        lost(is_rightly_lost(end.inv)),
        right(lost || (unit_of(params).right(s.state) && end.inv == end.inv)) {
    if constexpr (kUnified) served = is_served(params, s.state);
    if constexpr (forward_features.row_max) row_max = largest_score(RowState<float>{s.most, s.state.l});
    if constexpr (forward_features.entropy) {
      const float of_keys = onepass::entropy(s.state.l, s.terms);
      entropy = entropy_with_sink(params, row.head, unit_of(params).natural(s.state), of_keys);
    }
  }
  DEV void put_lse() const {
    const WorkTile x = group.work_tile(row.head);
    write_lse(p, x, row.token, end.lse);
    write_row_max(p, x, row.token, row_max);
    write_entropy(p, x, row.token, entropy);
    if constexpr (kUnified) p.recomputed.set(x.map_batch, x.head, x.q_begin + row.token, !served);
  }
  // The flag of a row in which put() has found an element that must be computed again.
  DEV RowFlag wrong() const { return right ? kNotFinite : kWrong; }
  // A column. Whether that is a result.
  DEV bool put_one(i32 column, float o) const {
    const float x = value(o, column);
    write_out(p, offset() + column, x);
    return lost || (right && is_finite(rounded(x)));
  }
  // An even column and the next, by one store where the row's address allows it.
  template <class Format = ElementOf<forward_features.output>::Format>
  DEV bool put_two(i32 column, float a, float b) const {
    constexpr u32 kBytes = bytes_of(forward_features.output);
    char* const at = static_cast<char*>(p.out) + (offset() + column) * static_cast<i64>(kBytes);
    if (reinterpret_cast<u64>(at) % (2 * kBytes) != 0) return put_one(column, a) & put_one(column + 1, b);
    const float x = value(a, column), y = value(b, column + 1);
    if constexpr (kBytes == 2)
      *reinterpret_cast<u32*>(at) = Format::pack(x, y);
    else
      store_global(at, {__float_as_uint(x), __float_as_uint(y)});
    return lost || (right && is_finite(rounded(x)) && is_finite(rounded(y)));
  }
  DEV bool put(i32 column, const float (&o)[4]) const {  // four, those of them that there are
    bool good = true;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      if (features.dim_v % 4 == 0 || column + i < features.dim_v) good = put_one(column + i, o[i]) && good;
    }
    return good;
  }

 private:
  DEV float value(float o, i32 column) const {
    const float x = (kChained ? o + 0.0f : o) * end.inv;  // a sum of states may be -0, a state alone is +0
    if constexpr (forward_features.v_mean) return end.share == 0.0f ? x : x + end.share * mean(column);
    return x;
  }
  DEV float mean(i32 column) const {
    return p.v_mean[group.batch * p.v_mean_stride[0] + row.head / p.heads_per_kv * p.v_mean_stride[1] +
                    column * p.v_mean_stride[2]];
  }
  DEV i64 offset() const { return out_offset(p, group.work_tile(row.head), row.token); }
  static DEV float rounded(float x) {
    using Format = ElementOf<forward_features.output>::Format;
    return Format::unpack(Format::round(x));
  }
};

DEV void flag(u32 sm, i32 row, RowFlag what) { store_word(sm + kLayout.flags + 4 * row, what); }
DEV void clear_flags(u32 sm) {
  for (i32 row = opaque_thread(); row < kRows; row += kThreads) store_word(sm + kLayout.flags + 4 * row, kRight);
}
// Rows whose flag is up, pair by pair, a warp a row.
DEV void run_fallback(u32 flags, const DecodeParams& p, const Group& g) {
#pragma unroll 1
  for (i32 row = own_warp(); row < g.rows(p); row += kWarps) {
    if (load_word(flags + 4 * row) == kRight) continue;
    const PackedRow x = PackedRow::of(p, g, row);
    fallback_row(p, g.work_tile(x.head), RowScores(p, g, x), x.token);
  }
}
// The same on tensor cores, where keys are of q's type. memory: repair_bytes.
DEV void run_repair(u32 memory, u32 flags, const DecodeParams& p, const Group& g) {
  if constexpr (kFp8Keys)
    run_fallback(flags, p, g);
  else
    repair_rows(memory, flags, p, g);
}

// Four columns of a row, over some of its parts.
struct RowSums {
  Sums all{{}, 0.0f};
  float o[4] = {};

  // Adds every step-th part from `from` on, with kTogether loads in flight.
  template <i32 kTogether>
  DEV void add(const Parts& parts, i32 row, i32 column, i32 from, i32 step) {
    const auto unit = unit_of(parts.partials.p);
#pragma unroll 1
    for (i32 first = from; first < parts.count; first += kTogether * step) {
      float sums[kTogether][4], x[kTogether][4], terms[kTogether] = {}, part_max = kNegInf;
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) {  // what is not there counts for nothing
        const i32 slot = parts.slot(parts.near(first + i * step));
        load_global(sums[i], parts.partials.sums(slot, row));
        load_global(x[i], parts.partials.output(slot, row) + column);
        if constexpr (forward_features.entropy) terms[i] = *parts.partials.terms(slot, row);
      }
      if constexpr (kChained) {
#pragma unroll
        for (i32 i = 0; i < kTogether; ++i) {
          const float m = parts.has(first + i * step) ? sums[i][0] : kNegInf;
          const Joint joint = join(unit, all, {{m, sums[i][1]}, sums[i][2], sums[i][3], terms[i]});
#pragma unroll
          for (i32 d = 0; d < 4; ++d)  // an infinity times a weight of 0 would be NaN
            o[d] = joint(o[d], parts.has(first + i * step) ? x[i][d] : 0.0f);
        }
        continue;
      }
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) part_max = fmaxf(part_max, sums[i][0]);
      meet(unit, part_max);
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) {  // no branch: behind one its loads would begin, one after the other
        const float weight = parts.has(first + i * step) ? unit.part_weight(sums[i][0], reference) : 0.0f;
        absorb_part(sums[i], x[i], weight);
        all.terms += terms_of_part(unit, reference, sums[i][0], sums[i][1], terms[i], weight);
      }
    }
  }
  template <class Unit>
  DEV void meet(const Unit& unit, float m) {
    [[maybe_unused]] const float before = all.state.m;
    reference = unit.meet(all.state, m);
    if constexpr (forward_features.entropy) all.terms = unit.moved_terms(all.terms, all.state.l, before, reference);
    all.norm *= reference.alpha;
#pragma unroll
    for (i32 d = 0; d < 4; ++d) o[d] *= reference.alpha;
  }
  DEV void absorb_part(const float (&sums)[4], const float (&x)[4], float weight) {
    all.see(sums[3]);
    absorb(all.state, sums[1] * weight);
    all.norm += sums[2] * weight;
#pragma unroll
    for (i32 d = 0; d < 4; ++d) o[d] += x[d] * weight;
  }
  DEV RowFlag put(const DecodeParams& p, const Group& g, i32 row, i32 column) const {
    const RowEnd end(p, g, row, all);
    if (column == 0) end.put_lse();
    return end.put(column, o) ? kRight : end.wrong();
  }

  decltype(unit_of(DecodeParams{}).keep({})) reference{};
};

// The parts of a group, in order, become its rows; by all threads of one block.
DEV void unite_parts(u32 sm, const DecodeParams& p, const Line& line, const Group& g) {
  constexpr i32 kQuads = Partials::kPitch / 4;
  const Parts parts(p, line, g);
#pragma unroll 1
  for (i32 at = opaque_thread(); at < g.rows(p) * kQuads; at += kThreads) {
    const i32 row = at / kQuads, column = (at - row * kQuads) * 4;
    RowSums x;
    x.add<16>(parts, row, column, 0, 1);
    if (const RowFlag what = x.put(p, g, row, column); what != kRight) flag(sm, row, what);
  }
}

// True if this CTA is the last of those that work on the group; all parts are then visible. segment: its last of them.
DEV bool is_last(u32 sm, const DecodeParams& p, const Line& line, const Segment& segment) {
  const Group& g = segment.group;
  const u32 word = sm + kLayout.flags + 4 * kRows;
  all_sync();
  if constexpr (kOwnBlocks) return true;
  if (opaque_thread() == 0) {
    // A group of one block, which pieces bring here, has no counter: it may be that of the group that ends the block's
    // work.
    constexpr bool kPieces = kPieceSteps > 1;  // are counted, else blocks
    const i32 all = kPieces ? g.pieces() : line.blocks_of(g),
              own = kPieces ? line.pieces_up_to(segment, line_block(p)) : 1;
    const bool alone = config.piece != 0 && own == all;
    u32* const counter = p.counters + line.first_block(g) * blocks_co_scheduled(p) + own_member(p);
    const bool last = alone || add_in_order(counter, own) + own == static_cast<u32>(all);
    if (last && !alone) *counter = 0;  // as it was found
    store_word(word, last);
  }
  all_sync();
  return load_word(word) != 0;
}

}  // namespace onepass::decode
