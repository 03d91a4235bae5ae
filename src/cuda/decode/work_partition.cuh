// The work as a line, and how CTAs share it.
//
// A group is the rows of one K/V head of one sequence, or of `co_scheduled` heads: neighbouring CTAs have the same
// segments, a head each, and read the same pages at the same time. Where a kernel has blocks of kRows rows
// (kRowBlocks), a group is `co_scheduled` of these blocks, and the keys that one of them reads are in L2 for the
// others. A group's work is the tiles of keys that any of the head's rows sees. All groups' tiles in order, or their
// pieces of config.piece tiles, are the steps of a line, which is cut into as many equal parts as there are CTAs; or
// every group's steps are (DecodeParams::splits), where that leaves few multiprocessors without work. So a block works
// on segments: runs of steps of one group. A group that several blocks work on has partial results, which the last of
// them merges.
//
// The constants of a kernel stand before this text: decode_tile.cuh or tile.cuh.
#pragma once
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/decode/decode_config.hpp"

namespace onepass::decode {

// This CTA's place among those that share a segment, and the segment's place among all.
// An FP8 cache with a softcap and ALiBi has no register left for heads that read together: 7 loads spilled.
constexpr bool kCoScheduled =
    kRowBlocks || (kLengthsVary && !kOwnBlocks && !kOneSegment &&
                   !(features.keys == ScalarType::e4m3 && features.softcap && features.alibi));
DEV i32 blocks_co_scheduled(const DecodeParams& p) { return kCoScheduled ? p.co_scheduled : 1; }
DEV i32 line_block(const DecodeParams& p) {
  const i32 block = static_cast<i32>(blockIdx.x);
  return kCoScheduled ? p.by_co_scheduled(block) : block;
}
DEV i32 own_member(const DecodeParams& p) {
  return static_cast<i32>(blockIdx.x) - line_block(p) * blocks_co_scheduled(p);
}

// States of parts of a row's keys join one at a time, in order: combine.cuh.
constexpr bool kChained = config.piece != 0 && !kRowBlocks;

// Steps that beginning with a group counts as, where all work is cut into equal parts.
DEV i32 lead_of(const DecodeParams& p) { return kRowBlocks ? p.lead : kGroupLead; }

struct Group {
  i32 number = 0, batch = 0, head = 0;  // head: of K and V, or of its groups of row blocks, or of the groups of heads
  i32 q_begin = 0, k_begin = 0, seq_q = 0, seq_k = 0;
  i32 first_tile = 0, tiles = 0;  // of the sequence
  i32 step = 0, steps = 0;        // on the line, behind the lead; one at least if it has rows: a block writes them
  i32 unit = 0, row = 0;          // kOwnBlocks: the block's number among those of all sequences, and its first row

  DEV i32 end() const { return step + steps; }
  DEV i32 kv_head(const DecodeParams& p) const {
    return kRowBlocks ? p.by_row_groups(head) : head * blocks_co_scheduled(p) + own_member(p);
  }
  DEV i32 first_row(const DecodeParams& p) const {  // this block's, of those of the K/V head
    if constexpr (kOwnBlocks) return row;
    return kRowBlocks ? ((head - kv_head(p) * p.row_groups) * p.co_scheduled + own_member(p)) * kRows : 0;
  }
  DEV i32 rows(const DecodeParams& p) const {
    const i32 all = seq_q * p.heads_per_kv;
    return kRowBlocks || kOwnBlocks ? min(all - first_row(p), kRows) : all;
  }
  // The query tokens of the rows.
  DEV i32 first_token(const DecodeParams& p) const { return kOwnBlocks ? p.by_rows_of_head(row) : 0; }
  DEV i32 end_token(const DecodeParams& p) const {
    return kOwnBlocks ? p.by_rows_of_head(row + max(rows(p), 1) - 1) + 1 : seq_q;
  }
  DEV WorkTile work_tile(i32 query_head) const {
    WorkTile x;
    x.row = 0, x.head = query_head, x.batch = batch, x.map_batch = features.packed ? 0 : batch;
    x.q_begin = q_begin, x.k_begin = k_begin, x.seq_q = seq_q, x.seq_k = seq_k;
    return x;
  }
};

struct Segment {
  Group group;
  i32 step = 0, steps = 0;  // on the line; no steps: the end of the block's work
  DEV void store(u32 to) const {
    store_four(to, group.number, group.batch, group.head, group.q_begin);
    store_four(to + 16, group.k_begin, group.seq_q, group.seq_k, group.first_tile);
    store_four(to + 32, group.tiles, group.step, group.steps, step);
    store_word(to + 48, steps);
    if constexpr (kOwnBlocks) store_word(to + 52, group.unit), store_word(to + 56, group.row);
  }
  static DEV Segment load(u32 from) {
    Segment s;
    load_four(from, s.group.number, s.group.batch, s.group.head, s.group.q_begin);
    load_four(from + 16, s.group.k_begin, s.group.seq_q, s.group.seq_k, s.group.first_tile);
    load_four(from + 32, s.group.tiles, s.group.step, s.group.steps, s.step);
    s.steps = load_word(from + 48);
    if constexpr (kOwnBlocks) s.group.unit = load_word(from + 52), s.group.row = load_word(from + 56);
    return s;
  }
  DEV bool whole() const { return steps == group.steps; }
  DEV i32 tile() const { return group.first_tile + (step - group.step) * kStepTiles; }
  DEV i32 end_tile() const { return min(tile() + steps * kStepTiles, group.first_tile + group.tiles); }
};

// Sets tiles and steps of a group, which follow from the sequence's length.
DEV void measure(const DecodeParams& p, Group& g) {
  const Band32::Range keys = band_of(p, g.seq_q, g.seq_k).key_range(g.first_token(p), g.end_token(p));
  g.first_tile = keys.lo / (kBlockN * kStepTiles) * kStepTiles;
  g.tiles = (keys.hi + kBlockN - 1) / kBlockN - g.first_tile;
  g.steps = max(1, (g.tiles + kStepTiles - 1) / kStepTiles);
}
DEV void take_lengths(const DecodeParams& p, Group& g) {
  if constexpr (kOwnBlocks) g.batch = p.by_row_groups(g.unit), g.row = (g.unit - g.batch * p.row_groups) * kRows;
  g.seq_q = p.seq_q;
  if constexpr (features.packed) g.q_begin = p.cu_q[g.batch], g.seq_q = p.cu_q[g.batch + 1] - g.q_begin;
  if constexpr (features.shared()) g.seq_q = p.own_rows(g.seq_q);
  WorkTile x;
  x.batch = g.batch;
  find_keys(p, x);
  g.k_begin = x.k_begin, g.seq_k = x.seq_k;
  measure(p, g);
}
// The unit that the line is made of: a sequence, or with kOwnBlocks a block of its rows.
DEV i32& line_unit(Group& g) { return kOwnBlocks ? g.unit : g.batch; }
DEV i32 line_units(const DecodeParams& p) { return kOwnBlocks ? p.batch * p.row_groups : p.batch; }
// Units that are not on the line.
DEV bool is_left_out(const DecodeParams& p, const Group& g) {
  return kOwnBlocks ? g.rows(p) <= 0 : features.shared() && g.seq_q == 0;
}
struct StepsOfSequence {  // of one of its groups
  const DecodeParams& p;
  DEV i32 operator()(i32 unit) const {
    Group g;
    line_unit(g) = unit;
    take_lengths(p, g);
    return is_left_out(p, g) ? 0 : (g.steps + lead_of(p)) * p.groups;
  }
};

// A sequence with more rows, in steps of this kernel that take as long: a multiprocessor multiplies a row with
// kProducts keys in the time in which it reads a byte of each element of K and V of one key.
struct StepsOfOthers {
  static constexpr float kProducts = 60.0f, kMost = 1 << 18;
  const DecodeParams& p;
  DEV i32 operator()(i32 batch) const {
    const i32 rows = p.cu_q[batch + 1] - p.cu_q[batch];
    if (p.most_rows == 0 || rows <= p.most_rows) return 0;
    WorkTile x;
    x.batch = batch;
    find_keys(p, x);
    const float seq_k = static_cast<float>(x.seq_k), seq_q = static_cast<float>(rows),
                seen = features.bounded_right ? fmaxf(seq_k - 0.5f * seq_q, 0.5f * seq_k) : seq_k;
    const float products = seen * seq_q * static_cast<float>(p.heads_per_kv * p.groups);
    return static_cast<i32>(fminf(products / (kProducts * bytes_of(features.keys) * kBlockN * kStepTiles), kMost));
  }
};

// Called by whole warps.
struct Line {
  const DecodeParams& p;
  i32 steps, blocks;  // of all groups; that share them, co-scheduled CTAs counted as one
  i32 span;           // steps that are cut into parts for themselves: a group's, or all
  i32 parts;          // of a span: blocks
  i32 each, rest;     // steps of a part; how many parts have one more
  Group pattern{};    // of sequences of one length

  DEV explicit Line(const DecodeParams& params) : p(params) {
    if constexpr (kLengthsVary) {
      steps = sequences().all();
    } else {
      take_lengths(p, pattern);
      steps = (pattern.steps + lead_of(p)) * p.groups * p.batch;
    }
    if (cut_evenly(p)) {
      blocks = p.blocks, span = pattern.steps, parts = p.splits;
      each = p.each, rest = p.rest;
    } else {
      blocks = min(max(steps * kStepTiles / p.min_tiles, p.batch * p.groups), blocks_beside(p.blocks));
      span = steps, parts = max(blocks, 1);
      each = span / parts, rest = span - each * parts;
    }
  }
  // A copy in shared memory, for callers without registers for it.
  struct Stored {
    u32 at;
  };
  DEV Line(const DecodeParams& params, Stored from) : p(params) {
    load_four(from.at, steps, blocks, span, parts);
    each = load_word(from.at + 16), rest = load_word(from.at + 20);
    if constexpr (!kLengthsVary) take_lengths(p, pattern);
  }
  DEV void store(Stored to) const {
    store_four(to.at, steps, blocks, span, parts);
    store_word(to.at + 16, each), store_word(to.at + 20, rest);
  }
  DEV SequenceParts<StepsOfSequence> sequences() const { return {{p}, line_units(p)}; }
  // The first step of a CTA, which with kOwnBlocks has whole groups.
  DEV i32 begin(i32 block) const {
    const i32 step = begin_of(block);
    if constexpr (kOwnBlocks) {
      if (step >= steps) return steps;
      const Group g = group_of(step);
      return step <= g.step ? step : g.end();
    }
    return step;
  }

  DEV i32 begin_of(i32 block) const {
    if (block >= blocks) return steps;
    const i32 spans = cut_evenly(p) ? p.by_splits(block) : 0, part = block - spans * parts;
    return spans * span + part * each + min(part, rest);
  }
  // The blocks that work on a group, and how many.
  DEV i32 first_block(const Group& g) const { return cut_evenly(p) ? g.number * parts : block_of(g.step); }
  DEV i32 blocks_of(const Group& g) const {
    return cut_evenly(p) ? parts : block_of(g.end() - 1) - block_of(g.step) + 1;
  }
  DEV Group group_of(i32 step) const {
    Group g = pattern;
    if constexpr (kLengthsVary) {
      const i32 in = sequences().find(step, line_unit(g));
      take_lengths(p, g);
      const i32 all = g.steps + lead_of(p);
      g.head = in / all;
      g.step = step - in + g.head * all + lead_of(p);
    } else {
      g.number = p.by_steps(step);
      g.step = g.number * (g.steps + lead_of(p)) + lead_of(p);
      g.batch = p.by_heads(g.number);
      g.head = g.number - g.batch * p.groups;
    }
    g.number = line_unit(g) * p.groups + g.head;
    return g;
  }
  DEV Group group(i32 number) const {
    Group g = pattern;
    g.number = number;
    g.batch = p.by_heads(number);
    g.head = number - g.batch * p.groups;
    if constexpr (kLengthsVary) {
      take_lengths(p, g);
      g.step = SequenceParts<StepsOfSequence>{{p}, g.batch}.all() + g.head * (g.steps + lead_of(p)) + lead_of(p);
    } else {
      g.step = number * (g.steps + lead_of(p)) + lead_of(p);
    }
    return g;
  }
  DEV Group after(Group g) const {
    g.step = g.end() + lead_of(p);
    ++g.number;
    if (++g.head < p.groups) return g;
    g.head = 0;
    ++line_unit(g);
    if constexpr (kLengthsVary) {
      if (line_unit(g) < line_units(p)) take_lengths(p, g);
    }
    if constexpr (features.shared() || kOwnBlocks) {  // sequences without rows of this kernel are not on the line
      while (line_unit(g) < line_units(p) && is_left_out(p, g)) {
        if (++line_unit(g) < line_units(p)) take_lengths(p, g);
      }
      g.number = line_unit(g) * p.groups;
    }
    return g;
  }

  // The segment from step `at` on, for a CTA whose steps end at `end`. A group's lead steps come before its own; a
  // split inside them counts as one before its first step.
  DEV Segment segment(const Group& group, i32 at, i32 end) const {
    const i32 step = max(at, group.step), most = config.piece != 0 ? 1 : group.end() - step;
    return {group, step, max(min(most, end - step), 0)};
  }
  DEV Segment first(i32 step, i32 end) const { return step < end ? segment(group_of(step), step, end) : Segment{}; }
  DEV Segment next(const Segment& s, i32 end) const {
    if constexpr (kOneSegment) return {};
    const i32 step = s.step + s.steps;
    return step < end ? segment(step == s.group.end() ? after(s.group) : s.group, step, end) : Segment{};
  }

 private:
  // How many of all blocks work, so that a prefill kernel that runs beside this one ends with it on the others. Memory
  // is read at 92 % of its speed by two thirds of the multiprocessors, and by fewer at much less.
  DEV i32 blocks_beside(i32 all) const {
    if constexpr (features.shared()) {
      if (p.concurrent == 0) return all;
      const float others = static_cast<float>(SequenceParts<StepsOfOthers>{{p}, p.batch}.all()),
                  own = static_cast<float>(steps + 1);
      return max(static_cast<i32>(static_cast<float>(all) * (1.0f - fminf(others / own, 0.35f)) + 0.5f), 1);
    }
    return all;
  }
  DEV i32 block_of(i32 step) const {  // where all work is cut into equal parts
    const i32 longer = rest * (each + 1);
    return step < longer ? step / (each + 1) : rest + (step - longer) / max(each, 1);
  }
};

}  // namespace onepass::decode
