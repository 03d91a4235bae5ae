// Groups, which follow from the lengths of sequences, and segments: the parts of the line of work_partition.cuh.
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

// Steps of a piece; the last of a group may have fewer.
constexpr i32 kPieceSteps = kPieceTiles / kStepTiles;

// With pieces, a group's steps are a multiple of kPieceSteps, some of them without keys, or of 1.
template <bool kHas>
struct WithGranule {
  i32 granule_steps = 1;
  DEV i32 granule() const { return granule_steps; }
  DEV void set_granule(i32 steps) { granule_steps = steps; }
};
template <>
struct WithGranule<false> {
  DEV i32 granule() const { return 1; }
  DEV void set_granule(i32) {}
};
constexpr bool kHasGranule = kPieceSteps > 1 && features.input != ScalarType::f32;  // fp32: no register is left
using Granule = WithGranule<kHasGranule>;

struct Group : Granule {
  i32 number = 0, batch = 0, head = 0;  // head: of K and V, or of its groups of row blocks, or of the groups of heads
  i32 q_begin = 0, k_begin = 0, seq_q = 0, seq_k = 0;
  i32 first_tile = 0, tiles = 0;  // of the sequence
  i32 step = 0, steps = 0;        // on the line, behind the lead; one at least if it has rows: a block writes them
  i32 row = 0;                    // kOwnBlocks: the block's first row

  DEV i32 end() const { return step + steps; }
  DEV i32 pieces() const { return (steps + kPieceSteps - 1) / kPieceSteps; }
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
    if constexpr (kOwnBlocks) store_word(to + 52, group.row);
  }
  static DEV Segment load(u32 from) {
    Segment s;
    load_four(from, s.group.number, s.group.batch, s.group.head, s.group.q_begin);
    load_four(from + 16, s.group.k_begin, s.group.seq_q, s.group.seq_k, s.group.first_tile);
    load_four(from + 32, s.group.tiles, s.group.step, s.group.steps, s.step);
    s.steps = load_word(from + 48);
    if constexpr (kOwnBlocks) s.group.row = load_word(from + 52);
    return s;
  }
  DEV bool whole() const { return steps == group.steps; }
  DEV i32 tile() const { return group.first_tile + (step - group.step) * kStepTiles; }
  DEV i32 end_tile() const { return min(tile() + steps * kStepTiles, group.first_tile + group.tiles); }
};

// Sets tiles and steps of a group, which follow from the sequence's length.
DEV void measure(const DecodeParams& p, Group& g) {
  const Band32::Range keys = band_of(p, g.seq_q, g.seq_k).key_range(g.first_token(p), g.end_token(p));
  g.first_tile = keys.lo / (kBlockN * kPieceTiles) * kPieceTiles;
  g.tiles = (keys.hi + kBlockN - 1) / kBlockN - g.first_tile;
  g.steps = max(1, (g.tiles + kStepTiles - 1) / kStepTiles);
  if (g.granule() > 1) g.steps = g.pieces() * kPieceSteps;
}
DEV void take_lengths(const DecodeParams& p, Group& g) {
  g.seq_q = p.seq_q;
  if constexpr (features.packed) g.q_begin = p.cu_q[g.batch], g.seq_q = p.cu_q[g.batch + 1] - g.q_begin;
  if constexpr (features.shared()) g.seq_q = p.own_rows(g.seq_q);
  WorkTile x;
  x.batch = g.batch;
  find_keys(p, x);
  g.k_begin = x.k_begin, g.seq_k = x.seq_k;
  measure(p, g);
}
// Sequences that are not on the line.
DEV bool is_left_out(const Group& g) { return features.shared() && g.seq_q == 0; }
struct StepsOfSequence : Granule {  // of its groups
  const DecodeParams& p;
  DEV StepsOfSequence(const DecodeParams& params, const Granule& granule = {}) : Granule(granule), p(params) {}
  DEV i32 operator()(i32 batch) const {
    Group g;
    g.set_granule(granule());
    g.batch = batch;
    take_lengths(p, g);
    return is_left_out(g) ? 0 : (g.steps + lead_of(p)) * p.groups;
  }
};
// With kOwnBlocks: blocks of rows of a K/V head.
struct BlocksOfSequence {
  const DecodeParams& p;
  DEV i32 operator()(i32 batch) const {
    i32 tokens = p.seq_q;
    if constexpr (features.packed) tokens = p.cu_q[batch + 1] - p.cu_q[batch];
    if constexpr (features.shared()) tokens = p.own_rows(tokens);
    return (tokens * p.heads_per_kv + kRows - 1) / kRows;
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

}  // namespace onepass::decode
